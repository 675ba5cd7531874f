package anomaly

import (
	"errors"
	"fmt"
	"maps"
	"os"

	"github.com/poolbridge/poolbridge/mempool"
)

// accounts returns an error if the numbers in the accounting contradict each other or the driver's numbers. If lost is
// true, the driver may have more memory in use than the accounting says, because the driver could not free memory.
func (s *stage) accounts(lost bool) error {
	if s.down {
		if st := s.svc.Stats(); st.Leases+st.Buffers+st.Names+st.Sessions+len(st.Pools) != 0 {
			return fmt.Errorf("a service that is shut down has %+v", st)
		}
		return nil
	}
	return eventually(func() error {
		st := s.svc.Stats()
		var errs []error
		for _, p := range st.Pools {
			if p.Reserved != p.Leased+p.Cached+p.Held || p.Used > p.Leased || p.Reserved > p.Pool.MaxBytes {
				errs = append(errs, fmt.Errorf("the accounts are wrong: %+v", p))
			}
			pool, err := s.admin.FindPool(p.Pool.ID)
			if errors.Is(err, mempool.ErrNotFound) {
				continue // the pool is gone
			}
			if err != nil {
				return err
			}
			switch n, err := pool.DriverInUse(); {
			case errors.Is(err, mempool.ErrInternal): // the GPU of the pool is lost, or the pool is gone
			case err != nil:
				errs = append(errs, err)
			case n < p.Reserved-p.Held, n > p.Reserved && !lost: // the driver may have freed the held blocks already
				errs = append(errs, fmt.Errorf("the driver says that %d bytes are in use, the accounts %+v", n, p))
			}
		}
		return errors.Join(errs...)
	})
}

// trim frees idle memory of the client's pool, and memory that the driver could not free before.
func (s *stage) trim() error {
	p, ok := s.pool()
	if !ok || s.down {
		return nil
	}
	_, err := s.admin.TrimPool(p.Pool.ID, 0)
	if errors.Is(err, mempool.ErrNotFound) {
		return nil // the pool is gone
	}
	return err
}

// empty returns an error if the service still has a session, a lease, a buffer, a name or memory of the client.
func (s *stage) empty() error {
	if s.down {
		return nil
	}
	return eventually(func() error {
		if err := s.trim(); err != nil {
			return err
		}
		st := s.svc.Stats()
		p, _ := s.pool()
		if st.Sessions != 3 || st.Leases != 1 || st.Buffers != 1 || st.Names != 0 || p.Reserved != 0 {
			return fmt.Errorf("the client left something behind: %+v", st)
		}
		return nil
	})
}

// estate has the objects that a process has in the driver and in the system.
type estate struct {
	live  map[string]int64
	files map[string]int
}

func estateOf(pid int) (e estate, err error) {
	t, err := driver.tally(pid)
	if err != nil {
		return e, err
	}
	e.live = t.live
	e.files, err = descriptors(pid)
	return e, err
}

// since returns an error if a process has other objects than before.
func (e estate) since(before estate) error {
	if maps.Equal(e.live, before.live) && maps.Equal(e.files, before.files) {
		return nil
	}
	return fmt.Errorf("driver objects %v and files %v, before %v and %v", e.live, e.files, before.live, before.files)
}

// estates has the objects of the service's process and of the client's process, while both are idle.
type estates struct{ service, client estate }

func (r *remote) estates() (e estates, err error) {
	if e.service, err = estateOf(os.Getpid()); err == nil {
		e.client, err = estateOf(r.pid())
	}
	return e, err
}

// since returns an error if one of the two processes has other objects than before.
func (e estates) since(before estates) error {
	if err := e.service.since(before.service); err != nil {
		return fmt.Errorf("the service has kept something: %w", err)
	}
	if err := e.client.since(before.client); err != nil {
		return fmt.Errorf("the client has kept something: %w", err)
	}
	return nil
}

// compare waits until both processes have the same objects as before a run.
func (r *remote) compare(before estates) error {
	return eventually(func() error {
		now, err := r.estates()
		if err != nil {
			return err
		}
		return now.since(before)
	})
}
