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
	"time"

	"fusec/kernels/group"
)

// Library is the environment variable that names the MPI library, in place of those of the system.
const Library = "FUSEC_MPI"

// Join joins the processes that were started together, which may take [group.Patience]. A participant that does not come to a
// collective operation within the given time is lost; 0 stands for [group.Patience], too. A process joins once, and Close ends
// its use of MPI.
func Join(patience time.Duration) (*group.Group, error) {
	place, ok, err := group.Launched(os.Getenv)
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
