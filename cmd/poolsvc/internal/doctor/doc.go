// Package doctor finds out whether a machine has what it needs to share GPU memory, and gives advice about what is missing.
package doctor
