package doctor

import "fmt"

// Status is the grade of a finding.
type Status string

// These are the grades of a finding.
const (
	OK      Status = "ok"
	Warning Status = "warning" // something works less well, or works only in some cases
	Missing Status = "missing" // something does not work here
)

// Finding is one fact about the machine.
type Finding struct {
	Topic  string `json:"topic"`
	Status Status `json:"status"`
	Detail string `json:"detail"`
	// Advice says what the user can do about the finding. It is empty if there is no advice.
	Advice string `json:"advice,omitempty"`
}

// chart collects findings.
type chart struct {
	asked    Options
	findings []Finding
	noGPU    bool
}

func (c *chart) ok(topic, format string, args ...any) {
	c.findings = append(c.findings, Finding{Topic: topic, Status: OK, Detail: fmt.Sprintf(format, args...)})
}

func (c *chart) warn(topic, advice, format string, args ...any) {
	c.findings = append(c.findings, Finding{Topic: topic, Status: Warning, Detail: fmt.Sprintf(format, args...), Advice: advice})
}

func (c *chart) missing(topic, advice, format string, args ...any) {
	c.findings = append(c.findings, Finding{Topic: topic, Status: Missing, Detail: fmt.Sprintf(format, args...), Advice: advice})
}
