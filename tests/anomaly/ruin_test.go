package anomaly

import "io"

func beRuined(io.Reader, io.Writer) int { return 0 }
