"""A real Kubernetes on hosts of tests/kit/hosts.py: its control plane on the first, a node on each of the others.

A node is lost with its machine (`Hosts.lose_power`, or crash): kubelet, containerd and all pods end at once, and
`boot_node` has it back, with its images. Nobody but the test reaches any of it, and it ends with its machines; what it
would keep on this one (/var/lib, /var/log, /run, control groups) is its own, or removed by `close`.

Needs root, Debian's packages below, kubectl of build/deploy-tools, and what `make kubernetes` compiles: 1.20.2.
"""

from __future__ import annotations

import json
import resource
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from elastic.drill.hosts.network import DIES_WITH_US, address, end, name
from tests.kit.deploy_tools import ROOT, program
from tests.kit.hosts import Hosts

CONTROL_PLANE = 1
BINARIES = ROOT / "build/kubernetes"
PAUSE = (
    "localhost/pause:1"  # the image of the container that holds a pod's namespaces; it has to wait, and nothing else
)
_OURS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
_PROGRAMS = {"etcd": "etcd-server", "containerd": "containerd", "ctr": "containerd", "runc": "runc"}
_PLUGINS = Path("/usr/lib/cni")  # containernetworking-plugins
_UP_WITHIN_S = 300.0
_ASK_WITHIN_S = 300.0
_POLL_S = 0.5
_CGROUPS = Path("/sys/fs/cgroup")
_SERVER = f"https://{address(CONTROL_PLANE)}:6443"

# The controllers and the scheduler give up where the server does not answer at once, and are started again, as a
# machine's init would.
_CONTROL_PLANE = """
cd "$1"; own=$2; bin=$3
always() { while true; do "$@"; sleep 1; done; }
always etcd --data-dir etcd --listen-peer-urls http://127.0.0.1:2380 > etcd.log 2>&1 &
always "$bin/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 --bind-address="$own" --advertise-address="$own" \\
    --secure-port=6443 --insecure-port=0 --cert-dir=certificates --token-auth-file=tokens.csv \\
    --authorization-mode=AlwaysAllow --service-cluster-ip-range=10.96.0.0/16 --service-account-issuer=https://tests \\
    --service-account-key-file=public.pem --service-account-signing-key-file=private.pem \\
    --disable-admission-plugins=ServiceAccount --kubelet-preferred-address-types=InternalIP > apiserver.log 2>&1 &
always "$bin/kube-controller-manager" --kubeconfig=kubeconfig --service-account-private-key-file=private.pem --port=0 \\
    --bind-address=127.0.0.1 --cert-dir=certificates --leader-elect=false --allocate-node-cidrs=false \\
    --controllers='*,-nodeipam' > controllers.log 2>&1 &
always "$bin/kube-scheduler" --kubeconfig=kubeconfig --port=0 --bind-address=127.0.0.1 --cert-dir=certificates \\
    --leader-elect=false > scheduler.log 2>&1
"""

# What two nodes of one machine would share is each one's own: in memory what a boot clears away, else in its folder.
# Kubelet insists on some settings of the kernel, which are this machine's: it is shown that they are set.
_NODE = """
set -e
cd "$1"; name=$2; own=$3; bin=$4; images=$5
mount -t tmpfs tmpfs /run
mkdir -p lib log settings
mount --bind lib /var/lib
mount --bind log /var/log
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \\
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    echo "${setting#*=}" > "settings/$(basename "${setting%=*}")"
    mount --bind "settings/$(basename "${setting%=*}")" "/proc/sys/${setting%=*}"
done
containerd --config containerd.toml >> containerd.log 2>&1 &
until ctr -a /run/containerd.sock version > /dev/null 2>&1; do kill -0 $!; sleep 0.1; done
if [ ! -e imported ]; then
    ctr -a /run/containerd.sock -n k8s.io images import "$images" > imported.log 2>&1
    touch imported
fi
exec "$bin/kubelet" --config=kubelet.yaml --kubeconfig=../kubeconfig --hostname-override="$name" --node-ip="$own" \\
    --container-runtime=remote --container-runtime-endpoint=unix:///run/containerd.sock >> kubelet.log 2>&1
"""

# Without the right to limit huge pages, and to lower a process's score for the out-of-memory killer.
_CONTAINERD = """
version = 2
root = "{folder}/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
address = "/run/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
restrict_oom_score_adj = true
disable_apparmor = true
disable_hugetlb_controller = true
netns_mounts_under_state_dir = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{plugins}"
conf_dir = "{folder}/cni"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""
_KUBELET: dict[str, Any] = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "cgroupDriver": "cgroupfs",
    "cgroupsPerQOS": False,
    "enforceNodeAllocatable": [],
    "failSwapOn": False,
    "makeIPTablesUtilChains": False,
    "oomScoreAdj": 0,
    "nodeStatusUpdateFrequency": "2s",
    "healthzPort": 0,
    "readOnlyPort": 0,
    "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
    "imageGCHighThresholdPercent": 100,
}


def missing() -> str | None:
    """Why there can be none here."""
    if lacking := [name for name in _OURS if not (BINARIES / name).exists()]:
        return f"no {', '.join(lacking)} in build/kubernetes: make kubernetes compiles them"
    packages = {package for program, package in _PROGRAMS.items() if shutil.which(program) is None}
    packages |= set() if (_PLUGINS / "bridge").exists() else {"containernetworking-plugins"}
    return f"needs apt-get install --no-install-recommends {' '.join(sorted(packages))}" if packages else None


class Kubernetes:
    """Up when it is made, a node on each host but the first. images: a docker archive for all nodes, with PAUSE"""

    def __init__(self, hosts: Hosts, folder: Path, images: Path) -> None:
        self._hosts = hosts
        self._folder = folder
        self._images = images
        self._kubectl = [str(program("kubectl", of="tools")), f"--kubeconfig={folder / 'kubeconfig'}"]
        self.nodes = [host for host in hosts.numbers if host != CONTROL_PLANE]
        self._booted: set[int] = set()
        self._containers = _containers()
        hosts.open.callback(self.close)
        self._start_control_plane()
        for host in self.nodes:
            self._prepare_node(host)
            self.boot_node(host)
        self._until(self._are_ready, "all nodes to be ready")

    def boot_node(self, host: int) -> None:
        command = ["bash", "-c", _NODE, "node", str(self._node(host)), name(host), address(host)]
        command += [str(BINARIES), str(self._images)]
        self._boot(host, command, self._node(host) / "machine.log")

    def ask(self, *arguments: str | Path, text: str | None = None, within_s: float = _ASK_WITHIN_S) -> str:
        """What kubectl says, once it has ended with 0."""
        command = [*self._hosts.inside(CONTROL_PLANE), *self._kubectl, *map(str, arguments)]
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=within_s, check=False)
        assert done.returncode == 0, f"kubectl {' '.join(map(str, arguments))}: {done.stderr}\n{self.said()}"
        return done.stdout

    def items(self, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.ask("get", kind, "--output=json"))["items"]
        return found

    def watch(self, kind: str, output: Path) -> None:
        """Writes down each state of each object of this kind, from now on: lines of JSON."""
        asks = ["get", kind, "--watch", "--output=jsonpath={@}{'\\n'}"]
        command = [*DIES_WITH_US, *self._hosts.inside(CONTROL_PLANE), *self._kubectl, *asks]
        with output.open("wb") as out:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL)
        self._hosts.open.callback(end, process)

    def said(self) -> str:
        """By what it is made of, lately."""
        logs = [*self._folder.glob("*.log"), *self._folder.glob("*/*.log")]
        return "\n".join(f"{log}: {log.read_text(errors='replace')[-1500:]}" for log in sorted(logs))

    def close(self) -> None:
        """Ends its machines, and removes the control groups of their containers."""
        self._hosts.crash(*self._hosts.numbers)
        for group in sorted(_containers() - self._containers, reverse=True):  # a folder after what is in it
            with suppress(OSError):
                group.rmdir()

    def _start_control_plane(self) -> None:
        folder, token = self._folder, secrets.token_hex(24)
        folder.mkdir(parents=True)
        (folder / "tokens.csv").write_text(f"{token},admin,admin,system:masters\n")
        server = {"server": _SERVER, "insecure-skip-tls-verify": True}
        names = {"cluster": "tests", "user": "admin"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "tests", "cluster": server}],
            "users": [{"name": "admin", "user": {"token": token}}],
            "contexts": [{"name": "tests", "context": names}],
            "current-context": "tests",
        }
        (folder / "kubeconfig").write_text(json.dumps(config))
        for made in (
            ["genrsa", "-out", "private.pem", "2048"],
            ["rsa", "-in", "private.pem", "-pubout", "-out", "public.pem"],
        ):
            subprocess.run(["openssl", *made], cwd=folder, check=True, capture_output=True, timeout=_ASK_WITHIN_S)
        command = ["bash", "-c", _CONTROL_PLANE, "control", str(folder), address(CONTROL_PLANE), str(BINARIES)]
        self._boot(CONTROL_PLANE, command, folder / "machine.log")
        self._until(self._answers, "the API server and the controllers")

    def _prepare_node(self, host: int) -> None:
        """Its pods have 10.244.HOST.0/24; every other host knows the way there."""
        folder = self._node(host)
        (folder / "cni").mkdir(parents=True)
        ranges = [[{"subnet": _pods(host)}]]
        ipam = {
            "type": "host-local",
            "dataDir": str(folder / "addresses"),
            "ranges": ranges,
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        network = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipam": ipam}
        (folder / "cni/pods.conf").write_text(json.dumps({"cniVersion": "0.4.0", "name": "pods", **network}))
        toml = _CONTAINERD.format(folder=folder, pause=PAUSE, plugins=_PLUGINS)
        (folder / "containerd.toml").write_text(toml)
        (folder / "resolv.conf").write_text("options timeout:1 attempts:1\n")
        own = {
            "address": address(host),
            "maxOpenFiles": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
            "resolvConf": str(folder / "resolv.conf"),
            "volumePluginDir": str(folder / "plugins"),
        }
        (folder / "kubelet.yaml").write_text(json.dumps({**_KUBELET, **own}))
        self._hosts.on(host, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        for other in set(self._hosts.numbers) - {host}:
            self._hosts.on(other, "ip", "route", "add", _pods(host), "via", address(host))

    def _boot(self, host: int, command: list[str], output: Path) -> None:
        self._hosts.start(host, command, env={}, output=output)
        self._booted.add(host)

    def _node(self, host: int) -> Path:
        return self._folder / name(host)

    def _answers(self) -> bool:
        with suppress(AssertionError):
            return "default" in self.ask("get", "serviceaccounts", "--output=name")  # a controller has made it
        return False

    def _are_ready(self) -> bool:
        ready = [
            node["metadata"]["name"]
            for node in self.items("nodes")
            for said in node["status"]["conditions"]
            if (said["type"], said["status"]) == ("Ready", "True")
        ]
        return len(ready) == len(self.nodes)

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _UP_WITHIN_S
        while not holds():
            assert time.monotonic() < deadline, f"waited {_UP_WITHIN_S:g} s for {what}\n{self.said()}"
            lost = [
                name(host) for host in self._hosts.numbers if host in self._booted and not self._hosts.running(host)
            ]
            assert not lost, f"{', '.join(lost)} ended\n{self.said()}"
            time.sleep(_POLL_S)


def _pods(host: int) -> str:
    return f"10.244.{host}.0/24"


def _containers() -> set[Path]:
    """The control groups of containerd's containers that there are on this machine."""
    return {path for path in _CGROUPS.glob("*/k8s.io/**") if path.is_dir()}
