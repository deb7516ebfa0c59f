// Package launching is `fusec launch`: it starts a program once for each device of this host.
package launching

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"fusec/cmd/internal/cli"
	"fusec/kernels/group/rendezvous"
)

// Command is fusec launch.
var Command = &cli.Command{
	Name:    "launch",
	Args:    "--devices N -- PROGRAM [ARG...]",
	Summary: "start a program once for each device of this host",
	Doc: `
Starts PROGRAM N times, as the participants of a group, and tells each its place by the variables that torchrun uses: RANK,
WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. FUSEC_TOKEN is a secret by which the participants know one another.
Participant 0 listens at a free port of 127.0.0.1 alone, which fusec launch reserves for it. On Linux, programs that open the
port themselves, such as those of torch.distributed, find it free. A participant takes the GPU of its LOCAL_RANK.

Signals are passed on. When a participant fails the others are ended, and the exit code is 1. Several hosts are for
torchrun, mpirun or srun, which set the same variables or their own.`,
	Examples: []cli.Example{
		{"fusec launch --devices 2 -- fusec bench group training", "training steps on two GPUs"},
		{"fusec launch --devices 4 -- ./program --folder run", "a program of your own, which calls rendezvous.Join"},
	},
	Setup: func(f *cli.FlagSet) cli.Action {
		devices := 1
		f.Count(&devices, "devices", 1, "start `N` participants")
		return func(e *cli.Env, args []string) error {
			if len(args) == 0 {
				return cli.Usage("a program to start is missing, after --")
			}
			return Run(e, devices, args)
		}
	},
}

// grace is how long participants may take to end after they were told to.
const grace = 5 * time.Second

// Run starts a command as the participants of a group on this host, and waits for all.
func Run(e *cli.Env, n int, command []string) error {
	held, port, err := newPort()
	if err != nil {
		return err
	}
	defer held.close()
	token := make([]byte, 16)
	if _, err := rand.Read(token); err != nil {
		return err
	}
	common := append(environment(), fmt.Sprint("WORLD_SIZE=", n), fmt.Sprint("LOCAL_WORLD_SIZE=", n),
		rendezvous.Address+"=127.0.0.1", rendezvous.Port+"="+strconv.Itoa(port), rendezvous.Token+"="+hex.EncodeToString(token))
	r := &run{say: &sync.Mutex{}, ended: make(chan end, n)}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, forwarded...)
	defer signal.Stop(signals)
	for rank := range n {
		c := exec.Command(command[0], command[1:]...)
		c.Env = append(common[:len(common):len(common)], fmt.Sprint("RANK=", rank), fmt.Sprint("LOCAL_RANK=", rank))
		c.Stdout, c.Stderr = &output{r.say, e.Out, e.Out.Flush}, &output{r.say, e.Stderr, nil}
		inGroup(c)
		err := error(nil)
		if rank == 0 {
			err = held.start(c)
		} else {
			err = c.Start()
		}
		if err != nil {
			r.all(syscall.SIGKILL)
			for range r.started {
				<-r.ended
			}
			return fmt.Errorf("participant %d: %w", rank, err)
		}
		r.started = append(r.started, c)
		go func() { r.ended <- end{rank, c.Wait()} }()
	}
	return r.wait(e.Ctx, signals, command)
}

// run is the participants, nil once they have ended.
type run struct {
	say     *sync.Mutex
	started []*exec.Cmd
	ended   chan end
}

// end is that of a participant.
type end struct {
	rank int
	err  error
}

// all sends a signal to those that run.
func (r *run) all(s os.Signal) {
	for _, c := range r.started {
		if c != nil {
			send(c, s)
		}
	}
}

// wait waits for all participants, and passes on what comes meanwhile.
func (r *run) wait(ctx context.Context, signals <-chan os.Signal, command []string) (failed error) {
	late, done, told := make(<-chan time.Time), ctx.Done(), false
	forward := func(s os.Signal) {
		r.all(s)
		told = true
	}
	for left := len(r.started); left > 0; {
		select {
		case x := <-r.ended:
			left--
			r.started[x.rank] = nil
			if x.err != nil && failed == nil {
				failed = fmt.Errorf("participant %d, %s: %w", x.rank, cli.Shell(command...), x.err)
				r.all(syscall.SIGTERM)
				late = time.After(grace)
			}
		case s := <-signals:
			forward(s)
		case <-done: // most often of a signal, which comes here, too
			done = nil
			select {
			case s := <-signals:
				forward(s)
			case <-time.After(100 * time.Millisecond):
			}
			if !told {
				r.all(syscall.SIGTERM)
			}
			if failed == nil {
				failed = context.Cause(ctx)
			}
			late = time.After(2 * grace)
		case <-late:
			r.all(syscall.SIGKILL)
		}
	}
	return failed
}

// output is where participants write, one after another.
type output struct {
	say   *sync.Mutex
	to    io.Writer
	flush func() error
}

// Write implements [io.Writer].
func (o *output) Write(b []byte) (int, error) {
	o.say.Lock()
	defer o.say.Unlock()
	n, err := o.to.Write(b)
	if err == nil && o.flush != nil {
		err = o.flush()
	}
	return n, err
}

// environment is this process's without the variables of other launchers.
func environment() (list []string) {
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		other := false
		for _, prefix := range []string{"OMPI_COMM_WORLD_", "PMI_", "MPI_LOCAL", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"} {
			other = other || strings.HasPrefix(name, prefix)
		}
		if !other {
			list = append(list, v)
		}
	}
	return list
}
