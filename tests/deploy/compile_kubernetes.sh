#!/bin/bash
# compile_kubernetes.sh FOLDER: Kubernetes' API server, controllers, scheduler and kubelet, 1.20.2, as tests/kit/kubernetes.py
# starts them. From Debian's source package (bookworm), with Debian's Go: 16 minutes of a processor, 2.5 GB of a temporary
# folder, and 360 MB in FOLDER. Needs root for apt-get.
set -eu
out=$(realpath -m "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export DEBIAN_FRONTEND=noninteractive
apt-get install -y --no-install-recommends golang-1.19-go golang-github-modern-go-reflect2-dev rsync jq dpkg-dev >/dev/null

# This machine may know no sources: a list of our own says the same, of sources.
mkdir -p "$work"/apt/{lists/partial,cache/archives/partial}
sed 's/^Types: deb$/Types: deb-src/' /etc/apt/sources.list.d/debian.sources >"$work/apt/debian.sources"
own=(-o "Dir::Etc::sourcelist=$work/apt/debian.sources" -o Dir::Etc::sourceparts=/dev/null -o APT::Sandbox::User=root
    -o "Dir::State::lists=$work/apt/lists" -o "Dir::Cache=$work/apt/cache")
apt-get "${own[@]}" update >/dev/null
cd "$work"
apt-get "${own[@]}" source --download-only kubernetes >/dev/null
mkdir source
tar -xzf kubernetes_*1.20.2.orig.tar.gz -C source --strip-components=1

# The reflect2 that comes with it faults under Go 1.18 and later; Debian's does not.
cd source
rm -rf vendor/github.com/modern-go/reflect2
cp -r /usr/share/gocode/src/github.com/modern-go/reflect2 vendor/github.com/modern-go/
mkdir -p .go/src/k8s.io
ln -sfn ../../.. .go/src/k8s.io/kubernetes
export GOPATH=$PWD/.go PATH=/usr/lib/go-1.19/bin:$PATH CGO_ENABLED=0 GOLDFLAGS="-s -w"
export KUBE_GIT_VERSION=v1.20.2 KUBE_GIT_COMMIT=debian KUBE_GIT_TREE_STATE=clean
nice -n 10 make WHAT="cmd/kube-apiserver cmd/kube-controller-manager cmd/kube-scheduler cmd/kubelet"
mkdir -p "$out"
cp _output/local/bin/linux/*/kube{-apiserver,-controller-manager,-scheduler,let} "$out"
