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
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	yamlstream "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/poolbridge/poolbridge/tests/rig"
)

// objects returns the objects of a file, read as the API's own types: an unknown or repeated field is an error.
func objects(t *testing.T, name string) (all []any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "kubernetes", name))
	require.NoError(t, err)
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
			"apps/v1 Deployment": &appsv1.Deployment{}}[kind.APIVersion+" "+kind.Kind]
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
