// Package doctor finds out which of the things that sharing GPU memory needs a machine has, and gives advice about missing ones.
package doctor
