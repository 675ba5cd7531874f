// Package training tests the example in this folder: images.py, trainer.py and answer.py.
package training

import (
	"fmt"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/tests/rig"
)

// dying begins a program that kills itself before the n-th of its lines that runs, in a loop also again and again: exec runs it as "example".
const dying = `
import os, signal, sys
left = int(sys.argv.pop(1))
def step(frame, event, arg):
    global left
    if frame.f_code.co_filename != "example":
        return None
    left -= event == "line"
    if left <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return step
with open(sys.argv.pop(1)) as file:
    program = compile(file.read(), "example", "exec")
sys.settrace(step)
exec(program)
`

func start(t *testing.T, file string, args ...string) *rig.Script {
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return rig.Python(t).Start(t, string(text), args...)
}

// asked asks answer.py, and returns how many of 1,000 images were right, and after how many steps of the trainer.
func asked(t *testing.T, answer *rig.Script) (right, steps int) {
	answer.Say(t, "")
	line := answer.Line(t)
	_, err := fmt.Sscanf(line, "%d right after %d steps", &right, &steps)
	require.NoError(t, err, line)
	return right, steps
}

func TestTrainingGoesOnWhicheverStepAProgramDiesAt(t *testing.T) {
	service := rig.Serve(t)
	t.Setenv("POOLBRIDGE_SOCKET", service.Socket)
	images, answer := start(t, "images.py", "1000000"), start(t, "answer.py")
	trainer := start(t, "trainer.py", "1000000")
	require.Equal(t, "training", trainer.Line(t))
	_, steps := asked(t, answer)
	goesOn := func(what string, step int) {
		for last := steps; steps <= last; {
			_, now := asked(t, answer)
			require.GreaterOrEqual(t, now, steps, "the weights went back: %s, step %d", what, step)
			steps = now
		}
	}
	dies := func(file string, first, last int) {
		var all []*rig.Script
		for step := first; step <= last; step++ {
			all = append(all, rig.Python(t).Start(t, dying, fmt.Sprint(step), file, "1000000"))
		}
		for i, one := range all {
			require.ErrorContains(t, one.Died(""), "killed", "%s, step %d", file, first+i) // empty lines, which answer.py answers
		}
	}
	for step := 1; step <= 28; step += 4 { // images.py is then in its second round
		dies("images.py", step, step+3)
		goesOn("images.py", step)
	}
	for step := 1; step <= 20; step += 4 {
		dies("answer.py", step, step+3)
		goesOn("answer.py", step)
	}
	trainer.Kill(t)
	for step := 1; step <= 36; step++ {
		dies("trainer.py", step, step)
		_, now := asked(t, answer)
		require.GreaterOrEqual(t, now, steps, "the weights went back: trainer.py, step %d", step)
	}
	trainer = start(t, "trainer.py", "1000000")
	goesOn("trainer.py", 36)
	images.Kill(t)
	trainer.Kill(t)
	assert.Empty(t, answer.End(t))
	assert.LessOrEqual(t, service.Idle(t).Buffers, 3, "the weights, and two arenas with frames that wait for a trainer")
}

func TestTrainingAndAnswersGoOnWhateverIsKilled(t *testing.T) {
	service := rig.Serve(t, "--guard", "--guard-quick", "0s")
	t.Setenv("POOLBRIDGE_SOCKET", service.Socket)
	images := func() *rig.Script { return start(t, "images.py", "1000000") }
	trains := func(steps string) *rig.Script {
		trainer := start(t, "trainer.py", steps)
		require.Equal(t, "training", trainer.Line(t))
		return trainer
	}
	first, second := images(), images()
	trainer, answer := trains("1000000"), start(t, "answer.py")
	steps := 0
	ask := func() int {
		right, now := asked(t, answer)
		require.GreaterOrEqual(t, now, steps, "the weights went back")
		steps = now
		return right
	}
	for round := range 8 {
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
			answer = start(t, "answer.py")
		case 3:
			first.Kill(t)
			trainer.Kill(t)
			second.Kill(t)
			first, second = images(), images()
			trainer = trains("1000000")
		default:
			require.NoError(t, syscall.Kill(rig.ServiceOf(t, service.Process.Pid), syscall.SIGKILL))
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
