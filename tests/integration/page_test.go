package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	neturl "net/url"
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

// browser is a headless browser that shows one page.
type browser struct {
	testing.TB
	ctx context.Context
}

// pagePatience is how long a browser may take to show something, on a busy machine.
const pagePatience = 4 * time.Minute

// openBrowser opens the page at url.
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
		assert.NoError(t, chromedp.Cancel(ctx)) // Cancel waits until the browser has ended
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

// text returns the value of an expression of JavaScript.
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

// httpOf returns the address at which a service serves the page.
func httpOf(t testing.TB, s *rig.Service) string {
	t.Helper()
	found := regexp.MustCompile(`metrics" address=(\S+)`).FindStringSubmatch(s.Said(t, `metrics" address=`))
	require.NotNil(t, found)
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
	page.shows(`document.querySelector("#session-rows tr").children[2].textContent === "%s"`, cameraPID) // this session has the most bytes
	page.shows(`document.getElementById("card-most-more").textContent.includes("pid %s")`, cameraPID)
	page.shows(`document.getElementById("graph").textContent.includes("pid %s")`, watcherPID)
	before := page.text(`document.querySelector("#channel-rows tr").children[5].textContent`)
	camera.Say(t, "on")
	page.shows(`document.querySelector("#channel-rows tr").children[5].textContent !== %q`, before)

	// Select the block with the name "weights", first with the mouse and then with the keyboard.
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
	page.shows(`!%s.includes("pid %s")`, about, readerPID) // the lease of the reader is gone
	page.shows(`document.getElementById("card-dead-more").textContent.includes("pid %s")`, readerPID)
	page.shows(`document.querySelector("#event-rows").textContent.includes("pid %s")`, readerPID)
	assert.Contains(t, page.text(about), "float32 [64, 128]", "the block under the cursor stays")

	// Colour the blocks by holder, and then filter the sessions.
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

// scripted serves the page of a service, but the page gets its messages from the test and not from the service.
func scripted(t testing.TB, service string) (url string, say func(event string, data any)) {
	t.Helper()
	at, err := neturl.Parse(service)
	require.NoError(t, err)
	script := make(chan string)
	stream := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for {
			select {
			case message := <-script:
				_, _ = io.WriteString(w, message)
				_ = http.NewResponseController(w).Flush()
			case <-r.Context().Done():
				return
			}
		}
	}
	mux := http.NewServeMux()
	mux.Handle("/", httputil.NewSingleHostReverseProxy(at))
	mux.HandleFunc("/page/stream", stream)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL, func(event string, data any) {
		t.Helper()
		text, err := json.Marshal(data)
		require.NoError(t, err)
		select {
		case script <- "event: " + event + "\ndata: " + string(text) + "\n\n":
		case <-time.After(pagePatience):
			require.FailNow(t, "the page does not read")
		}
	}
}

func TestTheCardsNameWhoDoesTheMostHarm(t *testing.T) {
	url, say := scripted(t, httpOf(t, rig.Serve(t, "--http", "127.0.0.1:0")))
	page := openBrowser(t, url)
	type m = map[string]any
	at := time.Now().UnixMilli()
	look := func(second int64, channels []m, sessions ...m) {
		say("look", m{"at": at + 1000*second, "version": "1", "epoch": "e", "count": len(sessions), "leases": 0, "buffers": 0, "pools": []m{},
			"sessions": sessions, "channels": channels})
	}
	shows := func(card, what, more string) {
		t.Helper()
		page.shows(`document.getElementById("card-%[1]s").textContent === %[2]q && document.getElementById("card-%[1]s-more").textContent.includes(%[3]q)`,
			card, what, more)
	}
	channel := func(id, published int, waiting int, members ...m) m {
		return m{"id": id, "name": fmt.Sprintf("channel %d", id), "pool": 1, "mode": "broadcast", "full": "block", "capacity": 4, "published": published,
			"dropped": 0, "used": min(waiting, 4), "waiting": waiting, "slowest": id, "blocks": false, "victims": "looks", "members": append([]m{}, members...)}
	}
	with := func(ch m, more m) m {
		maps.Copy(ch, more)
		return ch
	}
	session := func(id int, program string, leases int) m {
		return m{"id": id, "uid": 1, "pid": 100 + id, "program": program, "age": 1, "leases": leases, "bytes": 0}
	}
	ended := func(number, id int, program string, bytes int) m {
		return m{"number": number, "at": at, "kind": "session-ended", "text": "ended", "count": 1, "session": id, "pid": 100 + id, "program": program,
			"bytes": bytes, "ending": "lost"}
	}
	readers := []m{session(1, "flows", 0), session(2, "stands", 0), session(3, "borrows", 1), session(4, "looks", 0)}

	// Before the page receives events, it does not say whether a session died. Frames of a closed channel are still to be taken.
	look(0, []m{with(channel(1, 10, 3), m{"closed": true}), channel(2, 10, 3)}, readers...)
	shows("harm", "nobody waits", "flows is furthest behind: pid 101 is 3 of 4 frames behind")
	assert.Equal(t, "–", page.text(`document.getElementById("card-dead").textContent`))
	assert.Empty(t, page.text(`document.getElementById("card-dead-more").textContent`))
	say("events", []m{})
	shows("dead", "nobody", "was closed by its program")

	// If two channels are equally full, the card "harm" shows the slower channel.
	look(1, []m{channel(1, 12, 3), channel(2, 10, 3, m{"session": 2, "behind": 3})}, readers...)
	shows("harm", "nobody waits", "stands is furthest behind: pid 102 is 3 of 4 frames behind in channel 2")

	// The rate is not known before the second look at a channel.
	page.shows(`document.getElementById("graph").textContent.includes("2.0/s")`)
	look(2, []m{channel(1, 14, 3), channel(2, 10, 3), channel(3, 1, 0)}, readers...)
	page.shows(`document.querySelector("#channel-rows").children[2]?.children[4].textContent === "known in 1 s"`)

	// A consumer is 7 frames behind in a channel that keeps 4 frames.
	look(3, []m{channel(1, 14, 3), channel(2, 10, 7, m{"session": 2, "behind": 7})}, readers...)
	shows("harm", "nobody waits", "7 frames behind in channel 2, which keeps 4: it misses frames")
	page.shows(`document.querySelector("#channel-rows").children[1].children[7].textContent === "4 / 4"`)
	page.shows(`document.getElementById("graph").textContent.includes("4 of 4 used")`)

	// A consumer that does not block producers misses frames of a channel whose policy is to block. The page names it, and not the channel.
	const firstState = `document.querySelector("#channel-rows tr").children[11].textContent`
	misses := channel(1, 20, 0, m{"session": 1}, m{"session": 2, "missed": 10}, m{"session": 4, "producer": true})
	look(4, []m{with(misses, m{"dropped": 10})}, readers...)
	shows("harm", "nobody waits", "stands misses 50 % of the frames of channel 1")
	page.shows(firstState + ` === "stands misses 50 %%" && document.querySelector(".node.channel").matches(".hint:not(.slow)")`)
	look(4, []m{with(misses, m{"blocked": 3, "blocks": true, "used": 4, "slowest": 1, "waiting": 4})}, readers...)
	shows("harm", "flows blocks looks", "")
	page.shows(`document.getElementById("graph").textContent.includes("4 of 4 used") && !document.getElementById("graph").textContent.includes("misses")`)

	// A queue that drops many of its frames is no trouble, because somebody chose so.
	dropping := m{"mode": "queue", "full": "drop-oldest", "dropped": 41}
	const state = `document.querySelector("#channel-rows tr").children[11]`
	look(4, []m{with(channel(1, 50, 4, m{"session": 1}, m{"session": 4, "producer": true}), dropping)}, readers...)
	shows("harm", "nobody waits", "channel 1 drops 82 % of its frames (when full: drop-oldest)")
	page.shows(`!document.getElementById("card-harm").classList.contains("alarm") && document.querySelector(".node.channel").matches(":not(.hint, .slow)")`)
	page.shows(state + `.textContent === "drops 82 %%" && !` + state + `.classList.contains("hint")`)
	look(30, []m{with(channel(1, 100, 4, m{"session": 1}, m{"session": 4, "producer": true}), dropping)}, readers...)
	look(70, []m{with(channel(1, 150, 4, m{"session": 1}, m{"session": 4, "producer": true}), dropping)}, readers...)
	page.shows(state + `.textContent === "full"`)

	// A queue that is full while it has workers is in order. Its slowest worker is marked.
	const above = `document.getElementById("channels").getBoundingClientRect().top < document.getElementById("pools").getBoundingClientRect().top`
	queue := m{"mode": "queue", "blocked": 900}
	look(71, []m{with(channel(1, 14, 4, m{"session": 1}, m{"session": 4, "producer": true}), queue)}, readers...)
	shows("harm", "nobody waits", "")
	page.shows(`!(%s) && document.getElementById("graph").textContent.includes("the slowest")`, above)

	// A queue without a worker stops its producers.
	look(72, []m{with(with(channel(1, 14, 4, m{"session": 4, "producer": true}), queue), m{"blocks": true})}, readers...)
	shows("harm", "nobody takes from channel 1", "looks waits for room, for 15 min 00 s")
	page.shows(above)

	// A queue without a worker may also drop its frames.
	look(72, []m{with(with(channel(1, 50, 4, m{"session": 4, "producer": true}), dropping), m{"blocks": true})}, readers...)
	shows("harm", "nobody takes from channel 1", "it has no consumer, and it has dropped 41 of its 50 frames")
	page.shows(`document.getElementById("card-harm").classList.contains("alarm") && document.querySelector(".node.channel").matches(".slow:not(.hint)")`)
	page.shows(state + `.classList.contains("alarm") && !` + state + `.classList.contains("hint")`)
	page.shows(above)

	// A consumer that blocks producers comes before everything else: the one for which they have waited longest.
	waits := with(session(3, "borrows", 1), m{"waits": "buffer 7", "waited": 3600})
	look(73, []m{with(channel(1, 14, 4, m{"session": 1, "behind": 4}, m{"session": 4, "producer": true}), m{"blocked": 3, "blocks": true}),
		with(channel(2, 10, 3, m{"session": 2, "behind": 3}, m{"session": 4, "producer": true}), m{"blocked": 840, "blocks": true, "used": 4}),
		with(channel(4, 50, 4, m{"session": 1}, m{"session": 4, "producer": true}), dropping)}, append(readers, waits)...)
	shows("harm", "stands blocks looks", "for 14 min 00 s: pid 102 is 3 of 4 frames behind in channel 2, and 1 more in hand")
	page.shows(`document.querySelector("[data-session='2']").textContent.includes("in channel 2, and 1 more in hand, blocks looks")`)
	page.shows(`document.querySelector("#channel-rows").children[1].children[7].textContent === "4 / 4"`)
	page.shows(`document.getElementById("graph").textContent.includes("3 behind, 1 in hand")`)
	page.shows(`document.querySelector("#channel-rows").children[1].children[11].textContent === "producers wait 14 min 00 s"`)

	// Then comes the session that has waited longest.
	look(74, []m{channel(1, 14, 3)}, append(readers, waits)...)
	shows("harm", "borrows waits", "for buffer 7, for 1 h 00 min")
	page.shows(`!(%s)`, above)

	// The card "dead" shows the session that died last, also after the page was loaded again.
	events := []m{ended(1, 4, "looks", 0)}
	happen := func(e m) {
		events = append([]m{e}, events...)
		say("events", events)
	}
	say("events", events)
	shows("dead", "looks", "holding nothing")
	happen(ended(2, 3, "borrows", 0))
	shows("dead", "borrows", "pid 103")
	happen(ended(3, 5, "hog", 80<<20))
	shows("dead", "hog", "holding 80.0 MiB")
	happen(with(ended(4, 6, "left", 4096), m{"ending": "left"})) // a name keeps its memory
	page.shows(`document.querySelectorAll("#event-rows tr").length === 4 && document.querySelectorAll("#event-rows .died").length === 3`)
	page.shows(`document.getElementById("event-count").textContent === "all 4"`)
	shows("dead", "hog", "holding 80.0 MiB")
	page.do(chromedp.Click(chromedp.CSS("#troubles")))
	page.shows(`!document.getElementById("no-events").hidden && document.getElementById("no-events").textContent.includes("needs somebody to act")`)
	happen(m{"number": 5, "at": at, "kind": "subscriber-slow", "trouble": true, "text": "slow", "count": 1})
	page.shows(`document.getElementById("event-count").textContent === "1 of all 5"`)
	say("events", events[:2]) // older events are gone
	page.shows(`document.getElementById("event-count").textContent === "1 of the newest 2; poolsvc events has more"`)
}

func TestThePageMarksWhoBlocksAndWhoWaits(t *testing.T) {
	url, say := scripted(t, httpOf(t, rig.Serve(t, "--http", "127.0.0.1:0")))
	page := openBrowser(t, url)
	type m = map[string]any
	session := func(id int, program string, part, bytes int) m {
		return m{"id": id, "uid": 1, "pid": 100 + id, "program": program, "age": 1, "leases": 0, "bytes": bytes, "part": part}
	}
	channel := func(id int, blocks bool, producer, consumer int) m {
		return m{"id": id, "name": fmt.Sprintf("channel %d", id), "pool": 1, "mode": "broadcast", "full": "block", "capacity": 4, "published": 9, "dropped": 0, "used": 4,
			"waiting": 4, "slowest": consumer, "blocks": blocks, "blocked": 3, "members": []m{{"session": producer, "producer": true}, {"session": consumer, "behind": 4}}}
	}
	say("look", m{"at": time.Now().UnixMilli(), "version": "1", "epoch": "e", "count": 4, "leases": 0, "buffers": 0, "pools": []m{},
		"sessions": []m{session(3, "slow", 2, 0), session(4, "camera", 1, 0), session(1, "most", 0, 9), session(2, "other", 0, 0)},
		"channels": []m{channel(7, false, 1, 2), channel(8, true, 4, 3)}})
	shows := func(list, value, want string) {
		t.Helper()
		page.shows(`[...document.querySelectorAll("#%s-rows tr")].map((e) => %s).join() === %q`, list, value, want)
	}
	shows("session", `e.children[1].textContent + " " + e.className`, "slow blocks,camera waits,most ,other ")
	shows("channel", `e.children[0].textContent`, "channel 8,channel 7")
	page.shows(`[...document.querySelectorAll(".node.slow")].map((e) => e.firstChild.textContent).sort().join() === "camera,channel 8,slow"`)
	page.shows(`document.getElementById("card-most").textContent === "most"`)

	// In a narrow window, each cell has the name of its column.
	say("events", []m{{"number": 1, "at": 1, "kind": "subscriber-slow", "trouble": true, "text": "slow", "count": 1},
		{"number": 0, "at": 1, "kind": "session-ended", "ending": "lost", "text": "ended", "count": 1}})
	page.do(chromedp.EmulateViewport(420, 800))
	shows("event", `e.children[1].textContent + getComputedStyle(e.children[1], "::before").content`, `▲ subscriber slow"Event",✕ session ended, lost"Event"`)
}

// forward listens on a TCP port, and forwards each connection to the Unix socket at path, as ssh -L does.
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
