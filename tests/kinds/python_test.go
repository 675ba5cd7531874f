package kinds

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/rig"
)

// python runs a script with a client of a service, and returns the output. The service has a buffer in memory
// of the kind, published with the name "frame".
func python(t *testing.T, kind mempool.Kind, script string) string {
	t.Helper()
	s, _ := published(t, kind)
	t.Setenv("POOLSVC", rig.Poolsvc(t))
	return rig.Python(t).Start(t, "import sys, numpy as np, poolbridge\nclient = poolbridge.connect(sys.argv[1])\n"+script, s.Socket).End(t)
}

func TestInPythonPinnedMemoryIsAnArrayOfTheCPUAndOfTheGPU(t *testing.T) {
	said := python(t, mempool.Pinned, `
client.open_pool("p")
lease = client.allocate((3, 4), "float32", pool="p")
gpu = lease.view(device="cuda")
assert (lease.device, lease.__dlpack_device__()) == ("cpu", (1, 0))
assert (gpu.device, gpu.__dlpack_device__(), lease.view(device="cuda:0").device) == ("cuda:0", (2, 0), "cuda:0")
cpu = np.asarray(lease)
cpu[:] = np.arange(12).reshape(3, 4)
again = np.from_dlpack(lease.view(device="cpu"))
in_place = np.from_dlpack(lease, device="cpu", copy=False)
pointer = gpu.__cuda_array_interface__["data"][0]
assert cpu.ctypes.data == again.ctypes.data == in_place.ctypes.data == pointer
from poolbridge._cuda import cuda as _cuda
_cuda.copy_from_host(0, pointer, np.full(4, 9, np.float32))
assert cpu.tolist()[0] == [9, 9, 9, 9], cpu
view = lease.view(device="cpu")
assert view.device == "cpu" and not hasattr(view, "__cuda_array_interface__")
assert hasattr(gpu, "__array_interface__") and hasattr(lease.view(), "__array_interface__")
assert not hasattr(lease, "__cuda_array_interface__")
try:
    lease.view(device="cuda:1")
except poolbridge.InvalidArgumentError:
    print("refused")
del cpu, again, in_place, view, gpu
lease.release()
`)
	assert.Equal(t, "refused", said)
}

func TestInPythonAReadLeaseOfVMMIsReadOnly(t *testing.T) {
	said := python(t, mempool.VMM, `
from poolbridge._cuda import cuda as _cuda
read = client.get("frame")
try:
    read.copy_from(np.zeros(read.shape, np.uint8))
except poolbridge.InvalidArgumentError as error:
    print("library:", type(error).__name__)
before = read.to_numpy()
pointer = read._evidence()["pointer"]
try:
    _cuda.copy_from_host(0, pointer, np.zeros(8, np.uint8))
except poolbridge.DriverError as error:
    print("driver:", error)
assert (read.to_numpy() == before).all()
read.release()
write = client.get("frame", write=True, timeout=60)
assert write._evidence()["pointer"] != pointer
write.copy_from(np.full(write.shape, 7, np.uint8))
write.release()
assert (client.get("frame", timeout=60).to_numpy() == 7).all()
`)
	assert.Equal(t, "library: InvalidArgumentError\ndriver: cuMemcpy: CUDA_ERROR_INVALID_VALUE", said)
}

func TestInPythonALegacyHandleIsLoadedAndClosesItself(t *testing.T) {
	said := python(t, mempool.Legacy, `
import gc, json, os, subprocess, tempfile
from poolbridge._cuda import cuda as _cuda
path = os.path.join(tempfile.mkdtemp(), "frame.json")
subprocess.run([os.environ["POOLSVC"], "export", "frame", path, "--socket", sys.argv[1]], check=True)
handle = poolbridge.LegacyHandle.load(path)
assert poolbridge.LegacyHandle.from_bytes(bytes(handle)).handle == handle.handle
memory = handle.open()
assert memory.shape == (100003,) and memory.dtype == np.uint8, memory
expected = client.get("frame").to_numpy()
assert (memory.to_numpy() == expected).all()
assert memory.__cuda_array_interface__["data"] == (memory.address, False)
address = memory.address
view = memory.__dlpack__(stream=1, max_version=(1, 0))
del memory
gc.collect()
_cuda.pointer_facts(address)
del view
gc.collect()
with handle.open() as memory:
    pass
assert memory.closed
try:
    memory.to_numpy()
except poolbridge.LeaseReleasedError:
    print("closed")
`)
	assert.Equal(t, "closed", said)
}
