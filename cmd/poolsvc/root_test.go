package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestACommandThatIsNotThereBringsSimilarOnes(t *testing.T) {
	for says, typed := range map[string][]string{
		`poolsvc has no command "statsu"; did you mean "status"?`:    {"statsu"},
		`poolsvc channel has no command "shw"; did you mean "show"?`: {"channel", "shw"},
		`poolsvc pools takes no arguments, not ["frames"]`:           {"pools", "frames"},
	} {
		root := newRoot()
		root.SetArgs(typed)
		assert.ErrorContains(t, root.Execute(), says)
	}
}
