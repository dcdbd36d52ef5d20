// A container runtime without containers: the library with which containerd and CRI-O speak to NRI plugins, driven from
// outside by JSON lines. It also runs as a plugin on the project's own stub (`plugin` as first argument).
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"sync"

	nrilog "github.com/containerd/nri/pkg/log"
)

// maxLine bounds a request: 400 pods and 1,200 containers are less than a tenth of it.
const maxLine = 16 << 20

// request is one line from the driver. Each has an id, which its answer repeats.
type request struct {
	ID         int64             `json:"id"`
	Op         string            `json:"op"`
	Pod        *pod              `json:"pod"`
	Container  *container        `json:"container"`
	Unified    map[string]string `json:"unified"`
	Pods       []*pod            `json:"pods"`
	Containers []*container      `json:"containers"`
	Count      int               `json:"count"`
}

// output writes lines one at a time, since answers and events come from many goroutines.
type output struct {
	sync.Mutex
	writer io.Writer
}

func (o *output) send(message any) {
	line, err := json.Marshal(message)
	if err != nil {
		fatal(err)
	}
	o.Lock()
	defer o.Unlock()
	// A driver that is gone needs no answer, and its end ends this program.
	_, _ = o.writer.Write(append(line, '\n'))
}

// logger shows the library's messages and reports plugins that come and go, for which it has no callback.
type logger struct{ output *output }

const (
	connected         = "plugin %q connected and synchronized"
	connectedBefore07 = "plugin %q connected"
	disconnected      = "connection to plugin %q closed"
)

func (l *logger) log(level, format string, args ...any) {
	fmt.Fprintln(os.Stderr, level, fmt.Sprintf(format, args...))
	switch format {
	case connected, connectedBefore07:
		l.output.send(map[string]any{"event": "connected", "plugin": args[0]})
	case disconnected:
		l.output.send(map[string]any{"event": "disconnected", "plugin": args[0]})
	}
	if level == "error" {
		l.output.send(map[string]any{"event": "error", "text": fmt.Sprintf(format, args...)})
	}
}

func (l *logger) Debugf(context.Context, string, ...any) {}
func (l *logger) Infof(_ context.Context, format string, args ...any) {
	l.log("info", format, args...)
}
func (l *logger) Warnf(_ context.Context, format string, args ...any) {
	l.log("warning", format, args...)
}
func (l *logger) Errorf(_ context.Context, format string, args ...any) {
	l.log("error", format, args...)
}

func fatal(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "plugin" {
		runPlugin(os.Args[2:])
		return
	}
	options := settings{}
	control := flag.Int("control", 0, "file descriptor of the driver's connection")
	flag.StringVar(&options.name, "name", "containerd", "name of the runtime")
	flag.StringVar(&options.version, "version", "v2.2.0", "version of the runtime")
	flag.StringVar(&options.socket, "socket", "", "NRI socket to listen on")
	flag.BoolVar(&options.validator, "validator", false, "enable the default validator")
	flag.DurationVar(&options.work, "work", 0, "time that it works under its lock before and after each create")
	flag.Parse()
	connection := os.NewFile(uintptr(*control), "control")
	out := &output{writer: connection}
	nrilog.Set(&logger{output: out})
	serve(newRuntime(options, out), bufio.NewReaderSize(connection, 1<<16), out)
}

// serve answers until the driver hangs up. Each request has a goroutine: one that hangs must not delay the others.
func serve(runtime *runtime, in *bufio.Reader, out *output) {
	scanner := bufio.NewScanner(in)
	scanner.Buffer(nil, maxLine)
	for scanner.Scan() {
		asked := &request{}
		if err := json.Unmarshal(scanner.Bytes(), asked); err != nil {
			fatal(err)
		}
		go func() {
			answer, err := runtime.do(asked)
			if err != nil {
				answer = map[string]any{"error": err.Error()}
			}
			answer["id"] = asked.ID
			out.send(answer)
		}()
	}
}
