package driverfacts_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/cuda"
)

// call is a request to a worker. Op names the operation, which defines the meaning of the other fields.
type call struct {
	Op    string
	ID    int // number of an object, from an earlier reply
	Ptr   uint64
	Size  uint64
	Value uint64
	Data  []byte
}

// reply is the answer to a call. If the driver returned an error, Result is the driver's result code.
type reply struct {
	Result cuda.Result
	Error  string
	ID     int
	Ptr    uint64
	Size   uint64
	Value  uint64
	Data   []byte
	OK     bool
}

// send writes one packet with descriptors. The caller must close the descriptors.
func send(conn *net.UnixConn, v any, fds ...int) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	_, _, err = conn.WriteMsgUnix(b, rights, nil)
	return err
}

// receive reads one packet with its descriptors. The caller must close the descriptors.
func receive(conn *net.UnixConn, v any) ([]int, error) {
	b, control := make([]byte, 64*kib), make([]byte, unix.CmsgSpace(4*250))
	n, cn, flags, _, err := conn.ReadMsgUnix(b, control)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, io.EOF
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		return nil, errors.New("truncated packet")
	}
	messages, err := unix.ParseSocketControlMessage(control[:cn])
	if err != nil {
		return nil, err
	}
	var fds []int
	for i := range messages {
		got, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return nil, err
		}
		fds = append(fds, got...)
	}
	return fds, json.Unmarshal(b[:n], v)
}

// connection makes a connection from the descriptor of one end of a socket pair. It closes the descriptor.
func connection(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "worker")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, fmt.Errorf("not a Unix socket but %T", c)
	}
	return u, nil
}
