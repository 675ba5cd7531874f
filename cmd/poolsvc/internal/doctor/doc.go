// Package doctor finds out what a machine has that sharing GPU memory needs, and says what to do about what it lacks.
package doctor
