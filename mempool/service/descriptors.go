package service

import (
	"fmt"
	"os"
	"time"

	"github.com/poolbridge/poolbridge/internal/failpoint"
	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/mempool"
)

// BooksName is the name of the books in a [Store].
const BooksName = "books"

// maxHeld is how many descriptors a service gives to the store: their names must fit into a variable of the environment of its successor.
const maxHeld = 8000

// filePrefix begins the names of the descriptors that the books name.
const filePrefix = "pb."

func fileName(number uint64) string { return fmt.Sprint(filePrefix, number) }

// put gives a descriptor to the store, and returns its number; 0: there is no store. It waits for a store that is stopped, so the caller does
// not hold Service.mu. A successor notices it if the store did not take the descriptor. Numbers never come again, also not in a successor,
// because clients know some: they begin with the milliseconds since the machine has started.
func (d *descriptors) put(f *os.File) uint64 {
	if d.store == nil {
		return 0
	}
	number := d.last.Add(1)
	if d.held.Add(1) > maxHeld { // a successor would lack it
		d.svc.mu.Lock()
		defer d.svc.mu.Unlock()
		if !d.svc.guard.useless {
			d.svc.guard.giveUp(fmt.Sprintf("its guard would have to keep more than %d descriptors; make fewer channels, members and pools, and restart the service", maxHeld), &d.svc.mu)
		}
		return number
	}
	_ = d.store.Keep(fileName(number), f) // a successor notices that it lacks a descriptor
	failpoint.At("keep/stored")
	return number
}

// putBacking gives the store the descriptor of a backing, and returns its number; 0: there is none.
func (d *descriptors) putBacking(backing mempool.Backing) uint64 {
	if files := backing.Export().Files; len(files) > 0 {
		return d.put(files[0])
	}
	return 0
}

// spare is an empty memfd that the store already has. The service makes memory of it later, with Service.mu held.
type spare struct {
	file   *os.File // nil: it was used
	number uint64   // 0: there is no store
}

// use returns the number of the file, which belongs to the memory now.
func (f *spare) use() uint64 {
	number := f.number
	*f = spare{}
	return number
}

// sparesLocked makes spare files with these names. If there is a store, it releases Service.mu meanwhile: the store may be stopped, and then only
// those wait who need it. So the caller checks again what it has checked before. It calls giveBack at its end, also after an error.
func (d *descriptors) sparesLocked(names ...string) (all []*spare, err error) {
	if d.store != nil {
		d.svc.mu.Unlock()
		defer d.svc.mu.Lock()
	}
	for _, name := range names {
		f, err := shmchannel.NewFile(name)
		if err != nil {
			return all, mempool.HostError("make a file", err)
		}
		all = append(all, &spare{f, d.put(f)})
	}
	return all, nil
}

// giveBack closes the spare files that are not used, also in the store.
func (d *descriptors) giveBack(all []*spare) {
	for _, f := range all {
		if f.file != nil {
			_ = f.file.Close() // the code that could not make memory of the file may have closed it
			if f.number != 0 {
				d.dropNow(fileName(f.number))
			}
		}
	}
}

// drop makes the service close a descriptor of the store when the books do not name it any more. The caller holds Service.mu.
func (d *descriptors) drop(number uint64) {
	if number != 0 {
		d.dropped = append(d.dropped, number)
	}
}

// dropNow closes a descriptor of the store, which the books do not name. It does not wait for the store, which may be stopped.
func (d *descriptors) dropNow(name string) {
	d.held.Add(-1)
	d.mu.Lock()
	before, told := d.told, make(chan struct{})
	d.told = told
	d.mu.Unlock()
	go func() {
		defer close(told)
		if before != nil {
			<-before // only one of many holds a thread while the store is stopped
		}
		d.store.Drop(name)
		failpoint.At("drop/told")
	}()
}

// Unkeep closes a descriptor of the store, because a service that ends has no successor. It waits until the store has heard what to close, but
// not long for a store that is stopped.
func (s *Service) Unkeep(name string) {
	d := &s.descriptors
	if d.store == nil {
		return
	}
	d.dropNow(name)
	d.mu.Lock()
	told := d.told
	d.mu.Unlock()
	select {
	case <-told:
	case <-time.After(5 * time.Second):
	}
}

// flush closes the descriptors that the books do not name any more. The caller holds Service.mu.
func (d *descriptors) flush() {
	for _, number := range d.dropped {
		failpoint.At("drop/committed")
		d.dropNow(fileName(number))
	}
	d.dropped = d.dropped[:0]
}
