// The control plane in one binary: kube-apiserver, kube-controller-manager and kube-scheduler by their own entry points,
// unchanged. etcd is the one of the newest release. usage: plane NAME [FLAG...]
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	commands := map[string]func() *cobra.Command{
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-controller-manager": controllers.NewControllerManagerCommand,
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	}
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: plane kube-apiserver|kube-controller-manager|kube-scheduler [FLAG...]")
		os.Exit(2)
	}
	name := os.Args[1]
	os.Args = append([]string{name}, os.Args[2:]...)
	command, known := commands[name]
	if !known {
		fmt.Fprintln(os.Stderr, "plane: no such command:", name)
		os.Exit(2)
	}
	os.Exit(cli.Run(command()))
}
