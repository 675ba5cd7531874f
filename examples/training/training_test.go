// Package training tests the example in this folder: images.py, trainer.py and answer.py.
package training

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/tests/rig"
)

func TestTrainingAndAnswersGoOnWhateverIsKilled(t *testing.T) {
	python, service := rig.Python(t), rig.Serve(t)
	t.Setenv("POOLBRIDGE_SOCKET", service.Socket)
	start := func(file string, args ...string) *rig.Script {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		return python.Start(t, string(text), args...)
	}
	images := func() *rig.Script { return start("images.py", "1000000") }
	trains := func(steps string) *rig.Script {
		trainer := start("trainer.py", steps)
		require.Equal(t, "training", trainer.Line(t))
		return trainer
	}
	first, second := images(), images()
	trainer, answer := trains("1000000"), start("answer.py")
	steps := 0
	ask := func() (right int) {
		answer.Say(t, "")
		line, last := answer.Line(t), steps
		_, err := fmt.Sscanf(line, "%d right after %d steps", &right, &steps)
		require.NoError(t, err, line)
		require.GreaterOrEqual(t, steps, last, "the weights went back")
		return right
	}
	for round := range 4 {
		ask()
		time.Sleep(rand.N(200 * time.Millisecond)) // any moment is one at which a program may be killed
		switch round {
		case 0:
			first.Kill(t)
			first = images()
		case 1:
			trainer.Kill(t)
			trainer = trains("1000000")
		case 2:
			answer.Kill(t)
			answer = start("answer.py")
		case 3:
			first.Kill(t)
			trainer.Kill(t)
			second.Kill(t)
			first, second = images(), images()
			trainer = trains("1000000")
		}
	}
	for last := steps; steps < last+100; { // the training goes on
		ask()
	}
	assert.Greater(t, ask(), 900)
	trainer.Kill(t)
	ask()
	last := steps + 10
	assert.Empty(t, trains(fmt.Sprint(last)).End(t))
	ask()
	assert.Equal(t, last, steps, "a new trainer goes on with the newest weights, which stay")
	first.Kill(t)
	second.Kill(t)
	assert.Empty(t, answer.End(t))
	assert.LessOrEqual(t, service.Idle(t).Buffers, 3, "the weights, and two arenas with frames that wait for a trainer")
}
