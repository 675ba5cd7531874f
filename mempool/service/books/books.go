// Package books keeps the ledger of a service in a memfd, which outlives the service's process if another process has the file.
//
// The file has a header and two areas. An area has transactions, one after another: the length of its changes, their CRC-32C, and the changes
// as package ledger writes them; the first one has all records. The header ends with the commit word: the number of the area that counts, and
// the number of its bytes that count. A process that is killed has made every store before the kill, and none after it. So a transaction
// happens with one store, that of the commit word: all stores before go to bytes that do not count. When the area is much longer than its
// records, all records go to the other area, and the same store makes it the area that counts.
//
//	 0  "PBBOOKS" and the version of the format, 8 bytes
//	 8  the version of the records, 8 bytes
//	16  the service's epoch, 16 bytes
//	32  the commit word: area << 63 | bytes << 32 | CRC-32C of that, 8 bytes; 0 bytes: the books are given up
//	40  when the service began, in nanoseconds since 1970, 8 bytes
package books

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/internal/bytesize"
	"github.com/poolbridge/poolbridge/internal/failpoint"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

const (
	magic      = "PBBOOKS\x01"
	headBytes  = 4096
	areaBytes  = 1 << 30 // the file is sparse
	commitAt   = 32
	beganAt    = 40
	partBytes  = 1 << 20 // how many bytes the books allocate at a time
	entryBytes = 8       // before the changes of a transaction
)

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	salt       = []byte(magic) // of the checksum of the commit word
)

// VersionError says that books have a version that this program does not know. It wraps [mempool.ErrInvalid].
type VersionError struct{ Format, Records, Expected uint64 }

func (e *VersionError) Error() string {
	return fmt.Sprintf("%v: these books have format %d with records of version %d, and this program reads format %d with records of version %d: start the program that wrote them",
		mempool.ErrInvalid, e.Format, e.Records, uint64(magic[7]), e.Expected)
}

// Unwrap returns [mempool.ErrInvalid].
func (*VersionError) Unwrap() error { return mempool.ErrInvalid }

// Books are the books of a service. One goroutine at a time may call the methods.
type Books struct {
	file      *os.File
	mem       []byte
	area      uint64                       // 0 or 1
	end       uint64                       // how many bytes of the area count
	whole     uint64                       // how many bytes of the area its first transaction has
	allocated [2]uint64                    // how many bytes of each area have pages
	out       []byte                       // the next transaction
	stored    func(at uint64, data []byte) // hears of each store, in tests
}

// New makes books of a ledger.
//
// Errors: [mempool.ErrOutOfMemory], [mempool.ErrLimit].
func New(epoch mempool.Epoch, began time.Time, l *ledger.Ledger) (*Books, error) {
	fd, err := unix.MemfdCreate("poolbridge:books", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, mempool.HostError("memfd_create", err)
	}
	b := &Books{file: os.NewFile(uintptr(fd), "memfd:books")}
	if err := b.begin(epoch, began, l); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

func (b *Books) begin(epoch mempool.Epoch, began time.Time, l *ledger.Ledger) error {
	if err := b.file.Truncate(headBytes + 2*areaBytes); err != nil {
		return mempool.HostError("ftruncate", err)
	}
	if _, err := unix.FcntlInt(b.file.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return mempool.HostError("fcntl(F_ADD_SEALS)", err)
	}
	if err := b.mapFile(unix.PROT_READ | unix.PROT_WRITE); err != nil {
		return err
	}
	copy(b.mem, magic)
	binary.LittleEndian.PutUint64(b.mem[8:], ledger.Version)
	copy(b.mem[16:], epoch[:])
	binary.LittleEndian.PutUint64(b.mem[beganAt:], uint64(began.UnixNano()))
	b.area = 1 // so that the first area is the other one
	return b.rewrite(l)
}

func (b *Books) mapFile(protection int) (err error) {
	b.mem, err = unix.Mmap(int(b.file.Fd()), 0, headBytes+2*areaBytes, protection, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return mempool.HostError("mmap", err)
	}
	return nil
}

// File returns the file of the books.
func (b *Books) File() *os.File { return b.file }

// Close unmaps the books and closes their file.
func (b *Books) Close() error {
	var err error
	if b.mem != nil {
		err = os.NewSyscallError("munmap", unix.Munmap(b.mem))
	}
	return errors.Join(err, b.file.Close())
}

// Commit writes the changes that the ledger has noted since the last call. If Commit fails, the books are given up: they say nothing any more.
//
// Errors: [mempool.ErrOutOfMemory], [mempool.ErrLimit].
func (b *Books) Commit(l *ledger.Ledger) error {
	b.out = l.AppendChanges(append(b.out[:0], make([]byte, entryBytes)...))
	if len(b.out) == entryBytes || b.mem == nil {
		return nil
	}
	size := uint64(len(b.out))
	var err error
	if b.end+size > min(2*b.whole+partBytes, areaBytes) {
		err = b.rewrite(l)
	} else if err = b.append(b.area, b.end, b.out); err == nil {
		failpoint.At("books/appended")
		b.commit(b.area, b.end+size)
	}
	if cap(b.out) > partBytes {
		b.out = nil
	}
	if err != nil {
		b.commit(0, 0)
		err, b.mem = errors.Join(err, unix.Munmap(b.mem)), nil
	}
	return err
}

// rewrite writes all records to the other area, which counts from then on.
func (b *Books) rewrite(l *ledger.Ledger) error {
	old, next := b.area, b.area^1
	end, err := uint64(0), error(nil)
	full := func(data []byte) []byte {
		if err == nil {
			err = b.append(next, end, data)
		}
		end += uint64(len(data))
		return data[:entryBytes]
	}
	full(l.AppendAll(make([]byte, entryBytes, 128<<10), full))
	if err != nil {
		return err
	}
	b.whole = end
	failpoint.At("books/rewritten")
	b.commit(next, end)
	failpoint.At("books/moved")
	if b.allocated[old] <= 4*partBytes {
		return nil // the next rewrite uses these pages again
	}
	b.allocated[old] = 0
	return os.NewSyscallError("fallocate", unix.Fallocate(int(b.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, headBytes+int64(old)*areaBytes, areaBytes))
}

// append stores a transaction in an area, at bytes that do not count. It begins with room for its length and its checksum.
func (b *Books) append(area, at uint64, data []byte) error {
	end := at + uint64(len(data))
	if end > areaBytes {
		return typed.Errorf(mempool.ErrLimit, "the records of the service have more than %s", bytesize.Text(areaBytes))
	}
	if have := b.allocated[area]; end > have { // a store to a page that cannot be allocated would end the process
		more := (end - have + partBytes - 1) / partBytes * partBytes
		if err := unix.Fallocate(int(b.file.Fd()), 0, headBytes+int64(area*areaBytes+have), int64(min(more, areaBytes-have))); err != nil {
			return mempool.HostError("fallocate", err)
		}
		b.allocated[area] = min(have+more, areaBytes)
	}
	binary.LittleEndian.PutUint32(data, uint32(len(data)-entryBytes))
	binary.LittleEndian.PutUint32(data[4:], crc32.Checksum(data[entryBytes:], castagnoli))
	at += headBytes + area*areaBytes
	copy(b.mem[at:], data)
	if b.stored != nil {
		b.stored(at, data)
	}
	return nil
}

// commit makes what was appended count.
func (b *Books) commit(area, end uint64) {
	b.area, b.end = area, end
	word := commitWord(area, end)
	(*atomic.Uint64)(unsafe.Pointer(&b.mem[commitAt])).Store(word)
	if b.stored != nil {
		b.stored(commitAt, binary.LittleEndian.AppendUint64(nil, word))
	}
}

// commitWord returns the commit word: the upper half says what counts, and the lower half is its checksum.
func commitWord(area, end uint64) uint64 {
	says := uint32(area<<31 | end)
	return uint64(says)<<32 | uint64(crc32.Update(says, castagnoli, salt))
}

// Content is what books say.
type Content struct {
	Epoch        mempool.Epoch
	Began        time.Time // of the first service of the epoch; times in the records count from it
	Records      ledger.Records
	Transactions int    // how many there are in the area that counts
	Bytes        uint64 // the length of this area
}

// Read reads the file of books.
//
// Errors: [*VersionError]; [mempool.ErrInvalid] for a file that is none of books, or that was changed by something else.
func Read(file *os.File) (*Content, error) {
	st, err := file.Stat()
	if err != nil {
		return nil, mempool.HostError("fstat", err)
	}
	if st.Size() != headBytes+2*areaBytes {
		return nil, typed.Errorf(mempool.ErrInvalid, "books have %d bytes, and this file has %d", headBytes+2*areaBytes, st.Size())
	}
	b := Books{file: file}
	if err := b.mapFile(unix.PROT_READ); err != nil {
		return nil, err
	}
	c, err := read(b.mem)
	return c, errors.Join(err, os.NewSyscallError("munmap", unix.Munmap(b.mem)))
}

// read reads the bytes of books.
func read(mem []byte) (*Content, error) {
	if string(mem[:7]) != magic[:7] {
		return nil, typed.Errorf(mempool.ErrInvalid, "books begin with %q, and this file begins with %q", magic[:7], mem[:7])
	}
	if records := binary.LittleEndian.Uint64(mem[8:]); mem[7] != magic[7] || records != ledger.Version {
		return nil, &VersionError{uint64(mem[7]), records, ledger.Version}
	}
	word := binary.LittleEndian.Uint64(mem[commitAt:])
	area, end := word>>63, word>>32&(1<<31-1)
	if end == 0 || end > areaBytes || word != commitWord(area, end) {
		return nil, typed.Errorf(mempool.ErrInvalid, "the service gave its books up, or they were overwritten: the commit word is %#x", word)
	}
	c := &Content{Epoch: mempool.Epoch(mem[16:32]), Began: time.Unix(0, int64(binary.LittleEndian.Uint64(mem[beganAt:]))), Bytes: end}
	for left := mem[headBytes+area*areaBytes:][:end]; len(left) > 0; c.Transactions++ {
		if len(left) < entryBytes || uint64(binary.LittleEndian.Uint32(left)) > uint64(len(left)-entryBytes) {
			return nil, typed.Errorf(mempool.ErrInvalid, "the books were overwritten: transaction %d is longer than they are", c.Transactions)
		}
		data := left[entryBytes:][:binary.LittleEndian.Uint32(left)]
		if crc32.Checksum(data, castagnoli) != binary.LittleEndian.Uint32(left[4:]) {
			return nil, typed.Errorf(mempool.ErrInvalid, "the books were overwritten: the checksum of transaction %d is wrong", c.Transactions)
		}
		if err := c.Records.Apply(data); err != nil {
			return nil, fmt.Errorf("transaction %d: %w", c.Transactions, err)
		}
		left = left[entryBytes+len(data):]
	}
	return c, nil
}
