package verify

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/work"
	"github.com/poolbridge/poolbridge/mempool"
)

// goConsumer is the name of the consumer that is a process in Go.
const goConsumer = "go"

// missingOnes stands for the consumer in the check that reports which libraries are missing.
const missingOnes = "python"

// roster lists the consumers: this program in another process, and the libraries of the Python interpreter.
type roster struct{ work.Probe }

// audition starts one worker for each library that the Python interpreter has. The workers run at the same time. audition asks each
// worker which kinds of memory its library can use. The checks use these workers later. If a worker ends because its library crashes,
// only this library is missing in the checks.
func (s *stage) audition() (*roster, error) {
	first, err := s.start(role{})
	if err != nil {
		return nil, fmt.Errorf("%s cannot be started: %w", s.options.Python, err)
	}
	var has struct {
		OK        bool     `json:"ok"`
		Libraries []string `json:"libraries"`
	}
	if err = first.exchange(s.ctx, work.Task{Task: "libraries"}, &has); err == nil && len(has.Libraries) == 0 {
		err = errors.New("it cannot say what it has")
	}
	if err != nil {
		return nil, fmt.Errorf("%s cannot run poolbridge's workers (is the package installed there?): %w", s.options.Python, err)
	}
	probes := make([]work.Probe, len(has.Libraries))
	var all errgroup.Group
	for i, library := range has.Libraries {
		all.Go(func() (err error) {
			w := first
			if i > 0 {
				if w, err = s.start(role{consumer: library}); err != nil {
					return err
				}
			}
			if err := w.exchange(s.ctx, work.Task{Task: "probe", Consumer: library}, &probes[i]); err != nil {
				probes[i] = broken(library, err)
			}
			s.crew.dismiss(library, w)
			return s.ctx.Err()
		})
	}
	if err := all.Wait(); err != nil {
		return nil, err
	}
	return enrol(probes), nil
}

// broken returns a probe for a library whose worker did not answer.
func broken(library string, err error) (p work.Probe) {
	p.Missing = make(map[string]string)
	for _, kind := range mempool.Kinds() {
		p.Missing[string(kind)] = fmt.Sprintf("%s cannot be imported: %v", library, err)
	}
	return p
}

// enrol makes a roster from the answers of the libraries' workers. The preferred library comes first.
func enrol(probes []work.Probe) *roster {
	r := new(roster)
	r.Packages, r.Consumers, r.Missing = make(map[string]string), make(map[string][]string), make(map[string]string)
	said := make(map[string][]string)
	for _, p := range probes {
		r.Python, r.Native = cmp.Or(r.Python, p.Python), r.Native || p.Native
		maps.Copy(r.Packages, p.Packages)
		for kind, names := range p.Consumers {
			r.Consumers[kind] = append(r.Consumers[kind], names...)
		}
		for kind, why := range p.Missing {
			if !slices.Contains(said[kind], why) {
				said[kind] = append(said[kind], why)
			}
		}
	}
	for kind, why := range said {
		r.Missing[kind] = strings.Join(why, "; ")
	}
	return r
}

// consumersOf returns the consumers that can use memory of a kind. Go is the first.
func (p *roster) consumersOf(kind mempool.Kind) []string {
	return append([]string{goConsumer}, p.Consumers[string(kind)]...)
}

// missing says why some or all libraries of the interpreter cannot use memory of a kind. If all can use it, missing returns "".
func (p *roster) missing(kind mempool.Kind) string {
	if why := p.Missing[string(kind)]; why != "" {
		return why
	}
	if len(p.Consumers[string(kind)]) == 0 {
		return "no library for it is installed"
	}
	return ""
}

// preferred returns Go and, if there is one, the preferred library in Python.
func preferred(consumers []string) []string { return consumers[:min(2, len(consumers))] }
