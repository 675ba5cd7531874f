//go:build nonvml || !cgo || !linux

package nvml

// Library is the management library. This build has no such library.
type Library struct{}

// Open returns ErrUnavailable.
func Open() (*Library, error) { return nil, unavailable("Open") }

// Close does nothing.
func (l *Library) Close() error { return nil }

// DriverVersion returns ErrUnavailable.
func (l *Library) DriverVersion() (string, error) { return "", unavailable("DriverVersion") }

// Devices returns ErrUnavailable.
func (l *Library) Devices() ([]Device, error) { return nil, unavailable("Devices") }

func unavailable(op string) error {
	return &Error{Op: op, Detail: "this program was built without the management library", kind: ErrUnavailable}
}
