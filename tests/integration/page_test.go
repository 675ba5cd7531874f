package integration

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/tests/rig"
)

// browser is a page in a headless browser.
type browser struct {
	testing.TB
	ctx context.Context
}

// pagePatience is how long a browser may take to show something: a machine may be busy with other things.
const pagePatience = 4 * time.Minute

// openBrowser opens a page.
func openBrowser(t testing.TB, url string) *browser {
	t.Helper()
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		t.Skip("Chromium, which these tests look at the page with, is not installed: apt-get install chromium")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.UserDataDir(t.TempDir()),
		chromedp.Flag("disable-dev-shm-usage", true))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox)
	}
	all, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, end := chromedp.NewContext(all)
	b := &browser{t, ctx}
	t.Cleanup(func() {
		assert.NoError(t, chromedp.Cancel(ctx)) // waits until the browser has ended
		end()
		cancel()
	})
	require.NoError(t, chromedp.Do(ctx, chromedp.EmulateViewport(1280, 900)))
	_, err := chromedp.Call(ctx, emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true})
	require.NoError(t, err)
	b.do(chromedp.Navigate(url))
	return b
}

func (b *browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, pagePatience)
	defer cancel()
	require.NoError(b, chromedp.Do(ctx, steps...))
}

// text is what an expression of JavaScript gives.
func (b *browser) text(expression string) string {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, pagePatience)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string](expression))
	require.NoError(b, err, expression)
	return text
}

// shows waits until an expression of JavaScript is true.
func (b *browser) shows(format string, args ...any) {
	b.Helper()
	expression := fmt.Sprintf(format, args...)
	ctx, cancel := context.WithTimeout(b.ctx, pagePatience)
	defer cancel()
	_, err := chromedp.Run(ctx, chromedp.Poll[chromedp.Void](expression, chromedp.WithPollingTimeout(0), chromedp.WithPollingInterval(50*time.Millisecond)))
	if err != nil {
		require.NoError(b, err, "%s; the page shows:\n%s", expression, b.text("document.body.innerText"))
	}
}

// httpOf is where a service serves the page.
func httpOf(t testing.TB, s *rig.Service) string {
	t.Helper()
	found := regexp.MustCompile(`metrics" address=(\S+)`).FindStringSubmatch(s.Log())
	require.NotNil(t, found, s.Log())
	return "http://" + found[1]
}

const pageWork = `
import os, sys, numpy, poolbridge
role, socket = sys.argv[1:]
with poolbridge.connect(socket, timeout=120) as client:
    if role == "camera":
        client.open_pool("frames")
        weights = client.put(numpy.zeros((64, 128), "float32"), "weights")
        channel = client.create_channel("camera", capacity=4, full="drop-oldest")
        print(os.getpid())
        for number in range(1 << 40):
            array = numpy.from_dlpack(client.allocate((32, 32), "float32", timeout=None))
            array[...] = number
            channel.publish(array, timeout=None)
            if number % 100 == 99:
                sys.stdin.readline()  # the test sets the pace
    elif role == "watch":
        frames = client.subscribe("camera")
        print(os.getpid())
        for frame in frames:
            pass
    elif role == "read":
        weights = client.get("weights")
        print(os.getpid())
        sys.stdin.read()
`

func TestThePageShowsWhoHoldsWhatWhileAPipelineRunsAndWhoDied(t *testing.T) {
	s := rig.Serve(t, "--http", "127.0.0.1:0", "--pool", "name=frames,kind=host,max=64MiB")
	page := openBrowser(t, httpOf(t, s))
	python := rig.Python(t)
	camera := python.Start(t, pageWork, "camera", s.Socket)
	cameraPID := camera.Line(t)
	watcher := python.Start(t, pageWork, "watch", s.Socket)
	watcherPID := watcher.Line(t)
	reader := python.Start(t, pageWork, "read", s.Socket)
	readerPID := reader.Line(t)

	rowOf := func(pid string) string {
		return fmt.Sprintf(`[...document.querySelectorAll("#session-rows tr")].find((row) => row.children[2].textContent === "%s")`, pid)
	}
	for _, pid := range []string{cameraPID, watcherPID, readerPID} {
		page.shows(`%s !== undefined`, rowOf(pid))
	}
	page.shows(`document.querySelector("#session-rows tr").children[2].textContent === "%s"`, cameraPID) // it holds most
	page.shows(`document.getElementById("card-most-more").textContent.includes("pid %s")`, cameraPID)
	page.shows(`document.getElementById("graph").textContent.includes("pid %s")`, watcherPID)
	before := page.text(`document.querySelector("#channel-rows tr").children[5].textContent`)
	camera.Say(t, "on")
	page.shows(`document.querySelector("#channel-rows tr").children[5].textContent !== %q`, before)

	// The block with the name, which the mouse points at, and then the keyboard.
	const weights = `[...document.querySelectorAll(".block")].find((e) => e.textContent.startsWith("weights"))`
	const about = `document.querySelector(".about").textContent`
	page.shows(weights + ` !== undefined`)
	page.do(chromedp.ScrollIntoView(chromedp.CSS(".map")))
	at, err := chromedp.Run(page.ctx, chromedp.Evaluate[[]float64](`(() => { const box = (`+weights+`).getBoundingClientRect(); return [box.x + 5, box.y + 5]; })()`))
	require.NoError(t, err)
	page.do(chromedp.MouseEvent(chromedp.MouseMoved, at[0], at[1]))
	page.shows(about+`.includes("float32 [64, 128]") && %[1]s.includes("pid %[2]s")`, about, readerPID)
	assert.Contains(t, page.text(about), "pid "+cameraPID)
	page.do(chromedp.Focus(chromedp.CSS(".map")), chromedp.KeyEvent(kb.End))
	page.shows(`!%s.includes("float32 [64, 128]")`, about)
	page.do(chromedp.KeyEvent(kb.Home)) // the largest block
	page.shows(about+`.includes("float32 [64, 128]") && %[1]s.includes("pid %[2]s")`, about, readerPID)
	page.shows(`document.getElementById(document.querySelector(".map").getAttribute("aria-activedescendant")).getAttribute("aria-label").includes("weights")`)

	reader.Kill(t)
	page.shows(`%s === undefined`, rowOf(readerPID))
	page.shows(`!%s.includes("pid %s")`, about, readerPID) // its lease is gone
	page.shows(`document.getElementById("card-dead-more").textContent.includes("pid %s")`, readerPID)
	page.shows(`document.querySelector("#event-rows").textContent.includes("pid %s")`, readerPID)
	assert.Contains(t, page.text(about), "float32 [64, 128]", "the block under the cursor stays")

	// Colours by holder, and a filter.
	page.do(chromedp.Click(chromedp.CSS(`#colour input[value=holder]`)))
	page.shows(`document.getElementById("legend").textContent.includes("pid %s")`, cameraPID)
	page.do(chromedp.SendKeys(chromedp.CSS("#filter"), watcherPID))
	page.shows(`document.querySelectorAll("#session-rows tr").length === 1`)
	assert.Empty(t, page.text(`performance.getEntriesByType("resource").map((e) => e.name).filter((name) => !name.startsWith(location.origin)).join()`))
}

func TestThePageFindsAServiceAgainThatWasStartedAnew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "http")
	serve := func(pool string) *rig.Service {
		return rig.Serve(t, "--http", "unix:"+path, "--pool", "name="+pool+",kind=host,max=1MiB")
	}
	s := serve("before")
	page := openBrowser(t, "http://"+forward(t, path)+"/")
	page.shows(`document.getElementById("pool-list").textContent.includes("before") && document.getElementById("state").dataset.state === "live"`)
	s.Kill(t)
	page.shows(`document.getElementById("state").dataset.state === "lost"`)
	assert.True(t, strings.HasPrefix(page.text(`document.getElementById("state").textContent`), "no connection"))
	serve("after")
	page.shows(`document.getElementById("pool-list").textContent.includes("after") && document.getElementById("state").dataset.state === "live"`)
	page.shows(`!document.getElementById("pool-list").textContent.includes("before")`)
}

func TestAPageTooManySaysSoAndIsLiveOnceAnotherIsClosed(t *testing.T) {
	s := rig.Serve(t, "--http", "127.0.0.1:0")
	url := httpOf(t, s)
	ctx, closeOthers := context.WithCancel(t.Context())
	defer closeOthers()
	for range 32 {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/page/stream", http.NoBody)
		require.NoError(t, err)
		response, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		defer response.Body.Close()
		require.Equal(t, http.StatusOK, response.StatusCode)
	}
	page := openBrowser(t, url)
	page.shows(`document.getElementById("state").textContent.includes("32 pages are open already")`)
	closeOthers()
	page.shows(`document.getElementById("state").dataset.state === "live"`)
	page.shows(`!document.getElementById("no-pools").hidden`)
}

// forward forwards connections to a socket of the file system, as ssh -L does.
func forward(t testing.TB, path string) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer near.Close()
				far, err := net.Dial("unix", path)
				if err != nil {
					return
				}
				defer far.Close()
				go func() {
					_, _ = io.Copy(far, near)
					_ = far.Close()
				}()
				_, _ = io.Copy(near, far)
			}()
		}
	}()
	return l.Addr().String()
}
