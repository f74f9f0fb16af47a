"""API servers for the tests: a real kube-apiserver with its etcd, and a small fake that runs in the test process."""
