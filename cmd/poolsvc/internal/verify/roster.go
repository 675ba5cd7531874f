package verify

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/poolbridge/poolbridge/mempool"
)

const (
	// goConsumer is the name of the consumer that is a process in Go.
	goConsumer = "go"
	// missingOnes stands for the consumer in the check that reports which libraries are missing.
	missingOnes = "python"
)

// Roster says which libraries the Python interpreter has.
type Roster struct {
	Python   string            `json:"python"`
	Packages map[string]string `json:"packages"`
	// Native says whether the Python package has its native module.
	Native bool `json:"native"`
	// Consumers lists, for each kind of memory, the libraries that can use it. The preferred library comes first.
	Consumers map[string][]string `json:"consumers"`
	// Missing says, for a kind of memory, why the libraries that are not in Consumers cannot use it.
	Missing map[string]string `json:"missing"`
}

// audition starts a worker for each library that the Python interpreter has, all at the same time. It asks each worker which kinds of
// memory its library can use. If a worker ends because its library crashes, only this library is missing in the checks.
func (s *stage) audition() (*Roster, error) {
	first, err := s.start("", nil)
	if err != nil {
		return nil, fmt.Errorf("%s cannot be started: %w", s.options.Python, err)
	}
	var libraries []string
	if err = first.exchange(s.ctx, assignment{Task: "libraries"}, &libraries); err == nil && len(libraries) == 0 {
		err = errors.New("it cannot say what it has")
	}
	if err = errors.Join(err, first.Stop()); err != nil {
		return nil, fmt.Errorf("%s cannot run poolbridge's workers (is the package installed there?): %w", s.options.Python, err)
	}
	found := make([]Roster, len(libraries))
	var each errgroup.Group
	for i, library := range libraries {
		each.Go(func() error {
			w, err := s.start(library, nil)
			if err != nil {
				return err
			}
			if err := w.exchange(s.ctx, assignment{Task: "probe"}, &found[i]); err != nil {
				found[i] = broken(library, err)
			}
			s.dismiss(w)
			return s.ctx.Err()
		})
	}
	if err := each.Wait(); err != nil {
		return nil, err
	}
	return enrol(found), nil
}

// broken returns what is known of a library whose worker did not answer.
func broken(library string, err error) (r Roster) {
	r.Missing = make(map[string]string)
	for _, kind := range mempool.Kinds() {
		r.Missing[string(kind)] = fmt.Sprintf("%s cannot be imported: %v", library, err)
	}
	return r
}

// enrol makes one roster of what the workers of the libraries found. The preferred library comes first.
func enrol(found []Roster) *Roster {
	r := &Roster{Packages: make(map[string]string), Consumers: make(map[string][]string), Missing: make(map[string]string)}
	for _, one := range found {
		r.Python, r.Native = cmp.Or(r.Python, one.Python), r.Native || one.Native
		maps.Copy(r.Packages, one.Packages)
		for kind, names := range one.Consumers {
			r.Consumers[kind] = append(r.Consumers[kind], names...)
		}
		for kind, why := range one.Missing {
			if said := r.Missing[kind]; said == "" {
				r.Missing[kind] = why
			} else if !slices.Contains(strings.Split(said, "; "), why) {
				r.Missing[kind] = said + "; " + why
			}
		}
	}
	return r
}

// consumersOf returns the consumers that can use memory of a kind. Go is the first.
func (r *Roster) consumersOf(kind mempool.Kind) []string {
	return append([]string{goConsumer}, r.Consumers[string(kind)]...)
}

// missing says why some or all libraries of the interpreter cannot use memory of a kind. If all can use it, missing returns "".
func (r *Roster) missing(kind mempool.Kind) string {
	if why := r.Missing[string(kind)]; why != "" {
		return why
	}
	if len(r.Consumers[string(kind)]) == 0 {
		return "no library for it is installed"
	}
	return ""
}
