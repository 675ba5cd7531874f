// Package bench implements the command `poolsvc bench`. It measures the time and the memory that poolbridge uses. In the same run, it also
// measures other systems that a user can use instead of poolbridge.
package bench
