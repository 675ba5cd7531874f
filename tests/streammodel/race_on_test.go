//go:build race

package streammodel

const raceDetector = true
