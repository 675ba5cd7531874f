package check

import (
	"context"
	"encoding/json"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/rig"
)

// exposed returns the series of a service in use, each with its labels.
func exposed(t *testing.T) map[string]map[string]bool {
	t.Helper()
	path := filepath.Join(t.TempDir(), "http")
	s := rig.Serve(t, "--http", "unix:"+path, "--pool", "name=p,kind=host,max=1MiB")
	c, err := bridge.Dial(t.Context(), s.Socket)
	require.NoError(t, err)
	defer c.Close()
	pool, err := c.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	ch, err := c.CreateChannel(t.Context(), mempool.ChannelSpec{Name: "c", Pool: pool.Info().ID, Capacity: 4})
	require.NoError(t, err)
	l, err := pool.TryAllocate(t.Context(), mempool.Bytes(64))
	require.NoError(t, err)
	_, err = ch.Publish(t.Context(), l, mempool.FrameOptions{})
	require.NoError(t, err)
	next, stop := iter.Pull2(ch.Frames(t.Context(), mempool.SubscribeOptions{Oldest: true})) // for the series of a subscriber
	defer stop()
	_, err, _ = next()
	require.NoError(t, err)
	web := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
	defer web.CloseIdleConnections()
	response, err := web.Get("http://service/metrics")
	require.NoError(t, err)
	defer response.Body.Close()
	parse := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parse.TextToMetricFamilies(response.Body)
	require.NoError(t, err)
	series := map[string]map[string]bool{"up": {}} // Prometheus itself makes this series
	for name, family := range families {
		labels := map[string]bool{"job": true, "instance": true} // Prometheus adds these labels
		for _, m := range family.Metric {
			for _, label := range m.Label {
				labels[label.GetName()] = true
			}
		}
		series[name] = labels
		if family.GetType() == dto.MetricType_HISTOGRAM {
			labels["le"] = true
			series[name+"_bucket"], series[name+"_sum"], series[name+"_count"] = labels, labels, labels
		}
	}
	for _, labels := range series {
		labels["job"], labels["instance"] = true, true
	}
	return series
}

// asksFor checks that an expression is PromQL, and uses only series and labels that exist.
func asksFor(t *testing.T, where, expr string, series map[string]map[string]bool) {
	t.Helper()
	parsed, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
	if !assert.NoError(t, err, "%s: %s", where, expr) {
		return
	}
	var labels []map[string]bool
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		if selector, ok := node.(*parser.VectorSelector); ok {
			has, exists := series[selector.Name]
			assert.True(t, exists, "%s asks for %s, which there is not", where, selector.Name)
			for _, m := range selector.LabelMatchers {
				assert.True(t, m.Name == model.MetricNameLabel || has[m.Name], "%s: %s has no label %s", where, selector.Name, m.Name)
			}
			labels = append(labels, has)
		}
		return nil
	})
	require.NotEmpty(t, labels, "%s asks for nothing", where)
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		if sum, ok := node.(*parser.AggregateExpr); ok {
			for _, name := range sum.Grouping {
				for _, has := range labels {
					assert.True(t, has[name], "%s groups by %s, which a series of it lacks", where, name)
				}
			}
		}
		return nil
	})
}

func TestAlertsAskForSeriesThatThereAre(t *testing.T) {
	rules, errs := rulefmt.ParseFile("../prometheus/alerts.yaml", false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	require.Empty(t, errs)
	series, count := exposed(t), 0
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			asksFor(t, rule.Alert, rule.Expr, series)
			assert.NotEmpty(t, rule.Annotations["summary"], rule.Alert)
			assert.NotEmpty(t, rule.Annotations["description"], rule.Alert)
			count++
		}
	}
	assert.NotZero(t, count)
}

func TestAlertsFireWhenTheyShouldAndNotOtherwise(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool of Prometheus is not installed")
	}
	cmd := exec.Command(promtool, "test", "rules", "alerts_test.yaml")
	cmd.Dir = "../prometheus"
	out, err := cmd.CombinedOutput()
	assert.NoError(t, err, "%s", out)
}

func TestTheDashboardAsksForSeriesThatThereAre(t *testing.T) {
	text, err := os.ReadFile("../grafana/poolbridge.json")
	require.NoError(t, err)
	var dashboard struct {
		Panels []struct {
			ID          int
			Type, Title string
			GridPos     struct{ X, Y, W, H int }
			Targets     []struct{ Expr string }
		}
		Templating struct{ List []struct{ Name string } }
	}
	require.NoError(t, json.Unmarshal(text, &dashboard))
	series := exposed(t)
	variables := []string{"$__rate_interval", "5m"}
	for _, v := range dashboard.Templating.List {
		variables = append(variables, "$"+v.Name, "value")
	}
	taken, ids := make(map[[2]int]string), make(map[int]bool)
	for _, p := range dashboard.Panels {
		assert.False(t, ids[p.ID], "two panels have the id %d", p.ID)
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				assert.Less(t, x, 24, p.Title)
				assert.Empty(t, taken[[2]int{x, y}], "%s lies on another panel", p.Title)
				taken[[2]int{x, y}] = p.Title
			}
		}
		assert.Equal(t, p.Type != "row", len(p.Targets) > 0, p.Title)
		for _, target := range p.Targets {
			expr := strings.NewReplacer(variables...).Replace(target.Expr)
			assert.NotContains(t, expr, "$", p.Title)
			asksFor(t, p.Title, expr, series)
		}
	}
	assert.NotEmpty(t, taken)
}
