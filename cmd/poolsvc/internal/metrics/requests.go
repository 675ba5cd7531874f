package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Requests counts the requests of clients.
type Requests struct {
	answered *prometheus.CounterVec
	took     *prometheus.HistogramVec
}

// NewRequests makes the series about requests, and registers them with the
// registry.
func NewRequests(with prometheus.Registerer) *Requests {
	r := &Requests{
		answered: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "poolbridge_requests_total",
			Help: "Requests that were answered, by operation and result: ok, or the code of the error."}, []string{"operation", "result"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "poolbridge_request_duration_seconds",
			Help:    "Time from reading a request to sending its answer, including waits.",
			Buckets: []float64{5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 1e-2, 1e-1, 1, 10}}, []string{"operation"}),
	}
	with.MustRegister(r.answered, r.took)
	return r
}

// Answered counts one answered request. took is how long the answer took.
func (r *Requests) Answered(operation, result string, took time.Duration) {
	r.answered.WithLabelValues(operation, result).Inc()
	r.took.WithLabelValues(operation).Observe(took.Seconds())
}
