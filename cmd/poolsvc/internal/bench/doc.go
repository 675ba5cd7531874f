// Package bench implements the command `poolsvc bench`. It measures the time and the memory that poolbridge uses.
package bench
