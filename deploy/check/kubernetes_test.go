// Package check tests the files of the folder deploy with the libraries of the programs that read them: Kubernetes and Prometheus. Package
// check is a Go module of its own, so that the main module of the project does not need these libraries.
package check

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	yamlstream "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/poolbridge/poolbridge/tests/rig"
)

// objects returns the objects of a file, read as the API's own types: an unknown or repeated field is an error.
func objects(t *testing.T, name string) (all []any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "kubernetes", name))
	require.NoError(t, err)
	return read(t, name, text)
}

// read returns the objects of a text, as objects does.
func read(t *testing.T, name string, text []byte) (all []any) {
	t.Helper()
	documents := yamlstream.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			require.NotEmpty(t, all)
			return all
		}
		require.NoError(t, err)
		var kind metav1.TypeMeta
		require.NoError(t, yaml.Unmarshal(document, &kind))
		made := map[string]any{"v1 Namespace": &corev1.Namespace{}, "v1 ConfigMap": &corev1.ConfigMap{}, "apps/v1 DaemonSet": &appsv1.DaemonSet{},
			"apps/v1 Deployment": &appsv1.Deployment{}, "networking.k8s.io/v1 NetworkPolicy": &networkingv1.NetworkPolicy{},
			"monitoring.coreos.com/v1 PodMonitor": &monitoringv1.PodMonitor{}}[kind.APIVersion+" "+kind.Kind]
		require.NotNil(t, made, "%+v", kind)
		require.NoError(t, yaml.UnmarshalStrict(document, made), "%s: %s", name, kind.Kind)
		all = append(all, made)
	}
}

// only returns the only object of a type.
func only[T any](t *testing.T, all []any) (one T) {
	t.Helper()
	found := 0
	for _, object := range all {
		if this, ok := object.(T); ok {
			one = this
			found++
		}
	}
	require.Equal(t, 1, found)
	return one
}

// restricted checks that containers of a pod have only the permissions that poolbridge needs.
func restricted(t *testing.T, pod corev1.PodSpec) {
	t.Helper()
	assert.False(t, pod.HostIPC || pod.HostPID || pod.HostNetwork)
	assert.False(t, pod.ShareProcessNamespace != nil && *pod.ShareProcessNamespace)
	for _, c := range pod.Containers {
		s := c.SecurityContext
		require.NotNil(t, s, c.Name)
		assert.Nil(t, s.Privileged, c.Name)
		assert.Equal(t, []corev1.Capability{"ALL"}, s.Capabilities.Drop, c.Name)
		assert.Empty(t, s.Capabilities.Add, c.Name)
		assert.False(t, *s.AllowPrivilegeEscalation, c.Name)
		assert.True(t, *s.ReadOnlyRootFilesystem, c.Name)
		nonRoot, user := s.RunAsNonRoot, s.RunAsUser
		if nonRoot == nil {
			nonRoot, user = pod.SecurityContext.RunAsNonRoot, pod.SecurityContext.RunAsUser
		}
		assert.True(t, *nonRoot, c.Name)
		assert.NotZero(t, *user, c.Name)
		for _, p := range c.Ports {
			assert.Empty(t, validation.IsValidPortName(p.Name))
		}
		for _, mount := range c.VolumeMounts {
			named := 0
			for _, v := range pod.Volumes {
				if v.Name == mount.Name {
					named++
				}
			}
			assert.Equal(t, 1, named, "%s mounts %s", c.Name, mount.Name)
		}
	}
}

func TestTheExamplesForKubernetesAreWhatItsAPITakes(t *testing.T) {
	service, workload := objects(t, "poolsvc.yaml"), objects(t, "workload.yaml")
	set, deployment := only[*appsv1.DaemonSet](t, service), only[*appsv1.Deployment](t, workload)
	assert.Equal(t, set.Spec.Selector.MatchLabels, set.Spec.Template.Labels)
	assert.Equal(t, deployment.Spec.Selector.MatchLabels, deployment.Spec.Template.Labels)
	for _, pod := range []corev1.PodSpec{set.Spec.Template.Spec, deployment.Spec.Template.Spec} {
		restricted(t, pod)
	}
	from, to := set.Spec.Template.Spec.Volumes[0].HostPath, deployment.Spec.Template.Spec.Volumes[0].HostPath
	require.NotNil(t, from)
	require.NotNil(t, to)
	assert.Equal(t, from.Path, to.Path, "both mount the same folder")
	assert.True(t, deployment.Spec.Template.Spec.Containers[0].VolumeMounts[0].ReadOnly)
}

func TestProbesDoNotDependOnAnAddressThatOtherPodsReach(t *testing.T) {
	all := objects(t, "poolsvc.yaml")
	var config struct{ Socket struct{ Path string } }
	require.NoError(t, yaml.Unmarshal([]byte(only[*corev1.ConfigMap](t, all).Data["poolsvc.yaml"]), &config))
	require.NotEmpty(t, config.Socket.Path)
	service := only[*appsv1.DaemonSet](t, all).Spec.Template.Spec.Containers[0]
	for _, probe := range []*corev1.Probe{service.StartupProbe, service.ReadinessProbe, service.LivenessProbe} {
		require.NotNil(t, probe)
		require.NotNil(t, probe.Exec, "a probe by another way than the socket")
		assert.Equal(t, []string{"/usr/bin/poolsvc", "status", "--socket", config.Socket.Path}, probe.Exec.Command)
		assert.Greater(t, probe.TimeoutSeconds, int32(5), "poolsvc status waits for five seconds")
	}
}

// built returns the objects that `kubectl apply -k` applies.
func built(t *testing.T) []any {
	t.Helper()
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), "../kubernetes")
	require.NoError(t, err)
	text, err := made.AsYaml()
	require.NoError(t, err)
	return read(t, "kustomization.yaml", text)
}

func TestTheImageOfTheServiceHasTheVersionOfTheProject(t *testing.T) {
	changes, err := os.ReadFile("../../CHANGELOG.md")
	require.NoError(t, err)
	released := regexp.MustCompile(`(?m)^## (\d+\.\d+\.\d+)`).FindSubmatch(changes)
	require.NotNil(t, released)
	service := only[*appsv1.DaemonSet](t, built(t)).Spec.Template.Spec.Containers[0]
	assert.Equal(t, "registry.example.com/poolsvc:"+string(released[1]), service.Image)
	recipe, err := os.ReadFile("../container/Containerfile")
	require.NoError(t, err)
	assert.Contains(t, string(recipe), "internal/program.linked=${VERSION}", "the program says the same version as the label")
	assert.Contains(t, string(recipe), "org.opencontainers.image.version=${VERSION}")
}

func TestImagesOfOthersAreNamedByTheirDigests(t *testing.T) {
	recipe, err := os.ReadFile("../container/Containerfile")
	require.NoError(t, err)
	var images []string
	for _, line := range regexp.MustCompile(`(?m)^ARG (?:GO|BASE)=(.*)$`).FindAllStringSubmatch(string(recipe), -1) {
		images = append(images, line[1])
	}
	for _, line := range regexp.MustCompile(`(?m)^FROM (\S+)`).FindAllStringSubmatch(string(recipe), -1) {
		assert.Contains(t, []string{"${GO}", "${BASE}"}, line[1])
	}
	for _, c := range only[*appsv1.DaemonSet](t, built(t)).Spec.Template.Spec.InitContainers {
		images = append(images, c.Image)
	}
	require.Len(t, images, 3)
	for _, image := range images {
		assert.Regexp(t, `^[a-z0-9./-]+:[a-z0-9.-]+@sha256:[0-9a-f]{64}$`, image)
	}
}

func TestOnlyPrometheusReachesTheAddressOfTheMetrics(t *testing.T) {
	all := built(t)
	policy, pod := only[*networkingv1.NetworkPolicy](t, all), only[*appsv1.DaemonSet](t, all).Spec.Template
	assert.Equal(t, only[*appsv1.DaemonSet](t, all).Namespace, policy.Namespace)
	assert.Equal(t, pod.Labels, policy.Spec.PodSelector.MatchLabels)
	assert.ElementsMatch(t, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}, policy.Spec.PolicyTypes)
	assert.Empty(t, policy.Spec.Egress)
	require.Len(t, policy.Spec.Ingress, 1)
	in := policy.Spec.Ingress[0]
	require.Len(t, in.From, 1, "one peer: both selectors must match")
	assert.NotNil(t, in.From[0].NamespaceSelector)
	assert.NotNil(t, in.From[0].PodSelector)
	require.Len(t, in.Ports, 1)
	require.Len(t, pod.Spec.Containers[0].Ports, 1)
	assert.Equal(t, pod.Spec.Containers[0].Ports[0].Name, in.Ports[0].Port.StrVal)
}

func TestThePodMonitorGivesTheJobAndTheInstanceOfTheAlerts(t *testing.T) {
	set, monitor := only[*appsv1.DaemonSet](t, built(t)), only[*monitoringv1.PodMonitor](t, objects(t, "podmonitor.yaml"))
	assert.Equal(t, set.Namespace, monitor.Namespace)
	assert.Equal(t, set.Spec.Template.Labels, monitor.Spec.Selector.MatchLabels)
	require.Len(t, monitor.Spec.PodMetricsEndpoints, 1)
	endpoint := monitor.Spec.PodMetricsEndpoints[0]
	assert.Equal(t, set.Spec.Template.Spec.Containers[0].Ports[0].Name, *endpoint.Port)
	found := labels.NewBuilder(labels.FromStrings("job", "poolbridge/poolsvc", "instance", "10.0.0.1:9377", "__meta_kubernetes_pod_node_name", "gpu-7"))
	for _, rule := range endpoint.RelabelConfigs {
		step := relabel.DefaultRelabelConfig
		step.TargetLabel, step.NameValidationScheme = rule.TargetLabel, model.UTF8Validation
		if rule.Replacement != nil {
			step.Replacement = *rule.Replacement
		}
		for _, name := range rule.SourceLabels {
			step.SourceLabels = append(step.SourceLabels, model.LabelName(name))
		}
		require.True(t, relabel.ProcessBuilder(found, &step))
	}
	assert.Equal(t, "poolbridge", found.Get("job"), "as in alerts.yaml")
	assert.Equal(t, "gpu-7", found.Get("instance"))
}

func TestTheConfigurationsThatAreShippedAreRight(t *testing.T) {
	inMap := filepath.Join(t.TempDir(), "map.yaml")
	text := only[*corev1.ConfigMap](t, objects(t, "poolsvc.yaml")).Data["poolsvc.yaml"]
	require.NotEmpty(t, text)
	require.NoError(t, os.WriteFile(inMap, []byte(text), 0o600))
	unit := filepath.Join(t.TempDir(), "poolsvc.yaml") // a copy, because the file of the checkout may have any mode
	shipped, err := os.ReadFile("../systemd/poolsvc.yaml")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(unit, shipped, 0o600))
	page, err := os.ReadFile("../../docs/deploying.md")
	require.NoError(t, err)
	_, example, _ := strings.Cut(string(page), "```yaml\n")
	example, _, found := strings.Cut(example, "```")
	require.True(t, found)
	documented := filepath.Join(t.TempDir(), "documented.yaml")
	require.NoError(t, os.WriteFile(documented, []byte(example), 0o600))
	for _, path := range []string{inMap, unit, documented} {
		out, err := exec.Command(rig.Poolsvc(t), "config", "check", path).CombinedOutput()
		assert.NoError(t, err, "%s", out)
	}
}
