package seqpacket

import (
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"
)

// controlSpace is the size of the buffer for a control message with MaxFDs descriptors. The size is rounded up for the kernel, so for some
// values of MaxFDs the kernel could deliver one more descriptor.
const controlSpace = (unix.SizeofCmsghdr + MaxFDs*4 + 7) &^ 7

// rights takes all descriptors out of the control messages, even if there are more than MaxFDs, or the last message was truncated. The
// kernel has put all these descriptors into this process's table, so this process must close them.
func rights(control []byte) *FDs {
	var fds *FDs
	for len(control) >= unix.SizeofCmsghdr {
		head := (*unix.Cmsghdr)(unsafe.Pointer(&control[0]))
		size := int(head.Len)
		if size < unix.SizeofCmsghdr {
			return fds
		}
		body := control[unix.SizeofCmsghdr:min(size, len(control))]
		if head.Level == unix.SOL_SOCKET && head.Type == unix.SCM_RIGHTS {
			for ; len(body) >= 4; body = body[4:] {
				if fds == nil {
					fds = new(FDs)
				}
				fds.list = append(fds.list, NewFD(int(int32(binary.NativeEndian.Uint32(body)))))
			}
		}
		control = control[min((size+7)&^7, len(control)):]
	}
	return fds
}
