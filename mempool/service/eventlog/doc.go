// Package eventlog records what happened in a service: the newest events, counters, and how often something happened that is reported only
// now and then. It bounds what it keeps and what it logs. It knows nothing of pools, sessions or the service's locks: the service gives it
// plain values.
package eventlog
