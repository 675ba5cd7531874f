// Package bench is `poolsvc bench`. It measures what poolbridge costs and, in the same run, what users have without it.
package bench
