package group

import (
	"fmt"
	"strconv"
)

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
