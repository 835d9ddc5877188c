// etcd for the tests: its own main cannot be installed by name, because its go.mod carries replace lines.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	etcdmain.Main(os.Args)
}
