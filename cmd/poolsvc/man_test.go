package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// commands returns a command and all its visible subcommands.
func commands(c *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{c}
	for _, below := range c.Commands() {
		if below.IsAvailableCommand() {
			all = append(all, commands(below)...)
		}
	}
	return all
}

// manPage returns the man page of a command, without the markup of roff.
func manPage(t *testing.T, folder string, c *cobra.Command) string {
	text, err := os.ReadFile(filepath.Join(folder, strings.ReplaceAll(c.CommandPath(), " ", "-")+".1"))
	require.NoError(t, err)
	return strings.ReplaceAll(string(text), `\`, "")
}

func TestEveryCommandHasAManPageWithItsFlagsAndExamples(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "man1")
	require.NoError(t, writeManPages(folder))
	for _, c := range commands(newRoot()) {
		text := manPage(t, folder, c)
		var lines []string
		for line := range strings.Lines(text) {
			lines = append(lines, strings.TrimSpace(line))
		}
		for line := range strings.Lines(c.Long + "\n" + c.Example) {
			if strings.HasPrefix(line, "  ") {
				assert.Contains(t, lines, strings.TrimSpace(line), "%s: an example stands on a line of its own", c.CommandPath())
			}
		}
		for _, word := range strings.Fields(c.Flags().FlagUsages()) {
			if strings.HasPrefix(word, "--") {
				assert.Contains(t, text, strings.TrimRight(word, ",:;"), c.CommandPath())
			}
		}
	}
}

func TestTheMainManPageHasCommandsWithTheirPurposeFilesVariablesAndExamples(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "man1")
	require.NoError(t, writeManPages(folder))
	root := newRoot()
	text := manPage(t, folder, root)
	for _, title := range []string{"COMMANDS", "FILES", "ENVIRONMENT", "EXAMPLES", "SEE ALSO"} {
		assert.Contains(t, text, "\n.SH "+title+"\n")
	}
	for _, c := range commands(root)[1:] {
		if !c.HasAvailableSubCommands() {
			assert.Contains(t, text, ".TP\nfB"+strings.TrimPrefix(c.CommandPath(), "poolsvc ")+"fP\n"+c.Short+"\n")
		}
	}
	for _, s := range settings() {
		assert.Contains(t, text, "fB"+s.variable()+"fP")
	}
	_, examples, _ := strings.Cut(text, ".SH EXAMPLES")
	for line := range strings.Lines(examples) {
		if words, ok := strings.CutPrefix(strings.TrimSpace(line), "fBpoolsvc "); ok {
			args := strings.Fields(strings.TrimSuffix(words, "fP"))
			c, rest, err := newRoot().Find(args)
			require.NoError(t, err, line)
			assert.True(t, c.HasParent(), line)
			assert.NoError(t, c.ParseFlags(rest), line)
		}
	}
}

func TestManPagesAreTheSameForEveryUserAndMachine(t *testing.T) {
	home := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", home)
	t.Setenv("PATH", home)
	folder := filepath.Join(t.TempDir(), "man1")
	require.NoError(t, writeManPages(folder))
	self, err := os.Executable()
	require.NoError(t, err)
	for _, c := range commands(newRoot()) {
		text := manPage(t, folder, c)
		assert.NotContains(t, text, home, c.CommandPath())
		assert.NotContains(t, text, filepath.Dir(self), c.CommandPath())
	}
}

func TestManPagesHaveNoDefaultsThatMeanNothing(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "man1")
	require.NoError(t, writeManPages(folder))
	for _, c := range commands(newRoot()) {
		for line := range strings.Lines(manPage(t, folder, c)) {
			if strings.Contains(line, "fB--") {
				assert.NotRegexp(t, `=(0|false|""|)\]?$`, strings.TrimSpace(line), c.CommandPath())
			}
		}
	}
	lists, _, err := newRoot().Find([]string{"leases"})
	require.NoError(t, err)
	text := manPage(t, folder, lists)
	for _, line := range []string{"fB--jsonfP\n", "fB--watchfP[=FLOAT]\n", "fB--userfP=USER\n", "fB--poolfP=STRING\n"} {
		assert.Contains(t, text, line)
	}
}

func TestAFlagWithAnOptionalValueSaysHowThatIsWritten(t *testing.T) {
	root := newRoot()
	root.SetArgs([]string{"sessions", "--watch", "1"})
	err := root.Execute()
	assert.ErrorContains(t, err, "--watch=1")
	assert.Equal(t, 2, exitStatus(err))
}

func TestAUserIsANameOrANumber(t *testing.T) {
	var u userID
	require.NoError(t, u.Set("root"))
	assert.Zero(t, u)
	require.NoError(t, u.Set("4711"))
	assert.EqualValues(t, 4711, u)
	assert.ErrorContains(t, u.Set("no-such-body"), `there is no user "no-such-body"`)
}

func TestBashCompletesCommandsAndKinds(t *testing.T) {
	for typed, wanted := range map[string]string{"ver": "verify", "verify --kind ": "pinned", "bench --only tra": "transfer"} {
		root := newRoot()
		var out strings.Builder
		root.SetOut(&out)
		words := strings.Split(typed, " ")
		root.SetArgs(append([]string{cobra.ShellCompNoDescRequestCmd}, words...))
		require.NoError(t, root.Execute())
		assert.Contains(t, strings.Split(out.String(), "\n"), wanted, typed)
	}
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash")
	}
	var script strings.Builder
	require.NoError(t, newRoot().GenBashCompletionV2(&script, true))
	out, err := exec.Command(bash, "-n", "-c", script.String()).CombinedOutput()
	require.NoError(t, err, "%s", out)
}
