// Package mpi joins processes that mpirun, srun or another launcher of MPI has started. It loads the MPI library of the machine
// when a group is joined: no cgo, nothing to link, and a clear error where there is none. Open MPI and MPICH are known, and
// what has the binary interface of either.
//
// Messages are sent by MPI_Isend and MPI_Irecv, so that the participant that does not answer can be named, and that sums can be
// made in the order of participants, which MPI_Allreduce does not promise.
package mpi

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"fusec/kernels/group"
)

// Library is the environment variable that names the MPI library, in place of those of the system.
const Library = "FUSEC_MPI"

// Place is where a launcher has put this process.
type Place struct {
	Rank, Size int
	Local      int    // its rank on its host, -1 if unknown
	Launcher   string // that said so
}

// launchers are the variables by which launchers tell a process its place.
var launchers = []struct{ name, rank, size, local string }{
	{"mpirun of Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
	{"Hydra, of MPICH and Intel MPI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
	{"srun of Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
	{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"},
}

// Launched says where a launcher has put this process, by what get, such as [os.Getenv], knows of its variables; ok is false if
// none has started it.
func Launched(get func(string) string) (p Place, ok bool, err error) {
	for _, l := range launchers {
		if get(l.rank) == "" || get(l.size) == "" {
			continue
		}
		rank, err1 := strconv.Atoi(get(l.rank))
		size, err2 := strconv.Atoi(get(l.size))
		if err1 != nil || err2 != nil || size < 1 || rank < 0 || rank >= size {
			return p, true, fmt.Errorf("%s has started rank %q of %q: want a number, and how many there are, in %s and %s", l.name,
				get(l.rank), get(l.size), l.rank, l.size)
		}
		p = Place{Rank: rank, Size: size, Local: -1, Launcher: l.name}
		if local, err := strconv.Atoi(get(l.local)); err == nil {
			p.Local = local
		}
		return p, true, nil
	}
	return p, false, nil
}

// Join joins the processes that were started together. A participant that does not come to a collective operation within the
// given time is lost; 0 stands for [group.Patience]. A process joins once, and Close ends its use of MPI.
func Join(patience time.Duration) (*group.Group, error) {
	place, ok, err := Launched(os.Getenv)
	switch {
	case err != nil:
		return nil, err
	case !ok:
		return nil, errors.New("no launcher has started this process: start it with mpirun or srun")
	case place.Launcher == "torchrun":
		return nil, errors.New("torchrun starts participants without MPI: on processors, start them with mpirun or srun")
	}
	if patience == 0 {
		patience = group.Patience
	}
	t, err := open(patience)
	if err != nil {
		return nil, err
	}
	if t.size != place.Size {
		err := fmt.Errorf("%s has started %d processes, and the MPI library knows of %d: it belongs to another launcher",
			place.Launcher, place.Size, t.size)
		return nil, errors.Join(err, t.Close())
	}
	return group.New(t), nil
}
