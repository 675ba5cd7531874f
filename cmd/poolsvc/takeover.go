package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/guard"
	"github.com/poolbridge/poolbridge/internal/count"
	"github.com/poolbridge/poolbridge/internal/failpoint"
	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// The names of a listening socket in the descriptor store, one that the service made and one that systemd made, and of the settings.
const (
	socketName   = "socket"
	unitSocket   = "unit-socket"
	settingsName = "settings"
)

// heritage has the settings that a service leaves to the next one. They are of a configuration without mistakes: the file may have some, or be gone,
// when the service dies.
type heritage struct {
	Text  []byte   // of the configuration file; nil: there is none
	Pools []string // names of the pools of the configuration that were made
}

// succeed makes the plan of a service, or of a guard, that takes over: with the configuration file as the service before has read it. Without a
// service before, it is as resolve.
func succeed(f *pflag.FlagSet, held map[string]*os.File) (*plan, error) {
	left, _, err := inherit(held[settingsName])
	if err != nil || held[service.BooksName] == nil {
		return resolve(f, nil)
	}
	p, err := resolve(f, left.Text)
	if err != nil { // this program is of another version
		p, err = resolve(f, nil)
	}
	if err == nil {
		p.made = left.Pools
	}
	return p, err
}

// The file of the settings has two places for a heritage, of placeBytes each. Its first byte is the number of the place that counts. So a service that
// dies while it writes leaves what was there before.
const placeBytes = 8 << 20

// inherit reads the settings in the store, and returns the number of their place.
func inherit(settings *os.File) (left heritage, at int64, err error) {
	var counts [1]byte
	if _, err = settings.ReadAt(counts[:], 0); err == nil {
		at = int64(counts[0])
		err = json.NewDecoder(io.NewSectionReader(settings, 1+at*placeBytes, placeBytes)).Decode(&left)
	}
	return left, at, err
}

// leave gives the settings to the store, for the next service.
func (r *running) leave() {
	if r.store == nil {
		return
	}
	left := heritage{r.plan.text, make([]string, len(r.plan.pools))}
	for i, spec := range r.plan.pools {
		left.Pools[i] = spec.Name
	}
	before, at, err := inherit(r.settings)
	if err == nil && reflect.DeepEqual(before, left) {
		return
	}
	if err = r.write(left, 1-at); err != nil {
		r.svc.Impaired(fmt.Sprintf("the settings cannot be kept for the next service, which would read the configuration again: %v", err))
	}
}

// write writes the settings to a place of their file, and lets this place count.
func (r *running) write(left heritage, to int64) error {
	text, err := json.Marshal(left)
	if err != nil {
		return err
	}
	f := r.settings
	if f == nil {
		if f, err = shmchannel.NewFile("poolbridge:settings"); err != nil {
			return err
		}
		if err = r.store.Keep(settingsName, f); err != nil {
			return errors.Join(err, f.Close())
		}
		r.settings = f
	}
	if _, err = f.WriteAt(text, 1+to*placeBytes); err != nil {
		return err
	}
	failpoint.At("settings/written")
	_, err = f.WriteAt([]byte{byte(to)}, 0)
	return err
}

// beGuard runs the service as a child of this process.
func beGuard(c *cobra.Command, quick time.Duration) error {
	g := guard.Guard{Quick: quick, Held: make(map[string]*os.File), Settings: planArguments(c.Flags())}
	g.Take()
	p, err := succeed(c.Flags(), g.Held)
	if err != nil {
		return err
	}
	r := &running{plan: p}
	g.Log = r.newLog(c.ErrOrStderr())
	defer r.lines.close()
	files := activation.Files(true)
	if len(files) > 1 {
		return &socketError{manySockets(files)}
	}
	for _, f := range files {
		g.Held[unitSocket] = f
	}
	err = g.Run(c.Context())
	if exit, ended := errors.AsType[*exec.ExitError](err); ended && exit.Exited() {
		return &childError{exit} // the service has said why
	}
	return err
}

// childError is the end of the service that a guard ran.
type childError struct{ *exec.ExitError }

// Is reports true for errReported.
func (*childError) Is(target error) bool { return target == errReported }

// watchGuard starts another guard when the guard has died.
func (r *running) watchGuard(store *guard.Store) {
	for {
		for pause, err := time.Second, store.NewGuard(); err != nil; pause, err = min(2*pause, time.Minute), store.NewGuard() {
			r.svc.Unguarded(fmt.Sprintf("the guard of the service is gone, and another cannot be started: %v; if the service dies now, all sessions and "+
				"their memory end with it; the next try is in %v", err, pause))
			time.Sleep(pause)
		}
		r.svc.Guarded(store.Guard.Pid)
		r.svc.Impaired(fmt.Sprintf("the guard of the service died, and process %d is its guard now", store.Guard.Pid))
	}
}

// takeover is what a service takes over from the processes before it.
type takeover struct {
	store *guard.Store // nil: the service ends with this process
	held  map[string]*os.File
}

// begin makes the service, or takes over that of a process that died, with the descriptors in the store.
func (r *running) begin(held map[string]*os.File, config service.Config) (_ *takeover, err error) {
	store, t := r.store, &takeover{r.store, held}
	for name, f := range held {
		if strings.HasSuffix(name, ".socket") { // systemd's name, if the unit has no FileDescriptorName=
			held[unitSocket] = f
		}
	}
	if store == nil {
		r.svc = service.New(config)
		return t, nil
	}
	config.Store = store
	config.Takeovers, _ = strconv.ParseUint(os.Getenv(guard.TakeoversVariable), 10, 64) // systemd does not count them
	defer func() {
		if r.svc != nil && store.Guard != nil {
			r.svc.Guarded(store.Guard.Pid)
			go r.watchGuard(store)
		}
	}()
	if f := held[service.BooksName]; f != nil {
		began := time.Now()
		if r.svc, err = service.Adopt(config, held); err == nil {
			failpoint.At("begin/adopted")
			_ = f.Close() // these books were only read: the service has new ones
			r.adopted, r.settings = true, held[settingsName]
			r.svc.TookOver(time.Since(began))
			return t, nil
		}
		if !errors.Is(err, mempool.ErrInvalid) && !errors.Is(err, mempool.ErrUnavailable) {
			return nil, fmt.Errorf("the service before this one cannot be taken over now: %w", err) // the guard tries again
		}
		r.log.Error("the service before this one cannot be taken over: its sessions end, and its memory is given back", "error", err)
	}
	for name, f := range held { // also without books: a service may have died here, when it had dropped them
		if name != socketName && f != held[unitSocket] {
			_ = f.Close() // it was only held
			store.Drop(name)
			failpoint.At("begin/dropped")
		}
	}
	r.svc = service.New(config)
	failpoint.At("begin/made")
	return t, nil
}

// listen serves clients on the socket of the service before this one, or on a new one.
func (t *takeover) listen(socket string, p *plan, l life, svc *service.Service, config server.Config) (*server.Server, error) {
	if t.store != nil && t.held[unitSocket] == nil {
		config.Made = func(made *os.File) error {
			defer failpoint.At("listen/kept")
			return t.store.Keep(socketName, made)
		}
	}
	if f := t.held[socketName]; f != nil {
		return server.ListenAgain(f, svc, config)
	}
	files := activation.Files(true)
	if f := t.held[unitSocket]; f != nil {
		files = []*os.File{f}
	}
	return listen(files, socket, p, l, svc, config)
}

func newUpgrade() *cobra.Command {
	return dialing(bridge.Dialer{Watch: true}, &cobra.Command{
		Use:   "upgrade [PROGRAM]",
		Short: "Replace a running service with another version, and keep its sessions",
		Long: `Let the guard of a running service kill it, and run another poolsvc with the same arguments, which takes over: that of this command, or PROGRAM.
Clients wait meanwhile. If the other one cannot read the books of the service, or refuses its settings, nothing changes. The guard stays as it is.`,
		Args: arguments(0, 1),
	}, func(c *cobra.Command, client *bridge.Client, args []string) error {
		program, err := os.Executable()
		if len(args) > 0 {
			program, err = filepath.Abs(args[0])
		}
		st, failed := client.Stats(c.Context())
		switch err = errors.Join(err, failed); {
		case err != nil:
			return err
		case st.Guard != mempool.GuardWatches:
			return errors.New("the service has no guard: it was started with --guard=false, or by a program for its own use (--private, --ready-fd, --end-fd); restart it, which ends its sessions")
		case st.GuardPID == 0:
			return errors.New("systemd is the guard: install the other version, and let systemd start it: `systemctl kill --signal=KILL poolsvc`")
		}
		began := time.Now()
		if err := guard.Upgrade(int(st.GuardPID), program); err != nil {
			return fmt.Errorf("no upgrade: %w", err)
		}
		if st, err = client.Stats(c.Context()); err == nil {
			fmt.Fprintf(c.OutOrStdout(), "%s took over within %v: %s, %s, %s, %s\n", program, time.Since(began).Round(time.Millisecond),
				count.Of(len(st.Pools), "pool"), count.Of(st.Sessions-1, "session"), count.Of(st.Leases, "lease"), count.Of(st.Names, "name"))
		}
		return err
	})
}
