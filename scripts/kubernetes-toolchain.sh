#!/usr/bin/env bash
# scripts/kubernetes-toolchain.sh [FOLDER]: puts a Kubernetes control plane into FOLDER (~/.cache/roost/kubernetes): kube-apiserver,
# kube-controller-manager, kube-scheduler and etcd. Built once, which takes 2 cores some minutes; later calls do nothing.
#
# No registry of packages has the server's programs ready made. Debian's bookworm is the last suite whose source package has the whole
# tree, of version 1.20.2, with the sources of all that it is built of: one fetch, and a compiler of the same suite, unpacked beside it.
set -euo pipefail
# shellcheck source=scripts/toolchain.sh
. "$(dirname "$0")/toolchain.sh"
# shellcheck source=scripts/debian.sh
. scripts/debian.sh
TARGET=$(realpath -m "${1:-${XDG_CACHE_HOME:-$HOME/.cache}/roost/kubernetes}")
VERSION=v1.20.2
STAMP=$TARGET/.complete-1
[ ! -e "$STAMP" ] || exit 0

for tool in apt-get dpkg-deb flock; do
    command -v "$tool" >/dev/null || fail "no '$tool' here: the Kubernetes control plane is built out of Debian's packages."
done
[ "$(uname -m)" = x86_64 ] || fail "the Kubernetes control plane is built for x86_64 only; this is $(uname -m)."
mkdir -p "$TARGET"
exec 9>"$TARGET/lock"
flock 9
# Somebody else may have built it meanwhile.
[ ! -e "$STAMP" ] || exit 0
FOLDER=$TARGET/work
rm -rf "$FOLDER"
TREE=$FOLDER/gopath/src/k8s.io/kubernetes
mkdir -p "$TREE"

MIRROR=$(mirror)
say "building a Kubernetes $VERSION control plane from Debian's sources (140 MB to fetch; some minutes, once)"
open_suite bookworm "deb deb-src"
unpack bookworm "$FOLDER/root" golang-1.19-go golang-1.19-src golang-github-modern-go-reflect2-dev etcd-server
(cd "$FOLDER" && APT_CONFIG=$FOLDER/apt/bookworm/apt.conf apt-get source -qq --download-only kubernetes) ||
    fail "apt could not fetch the source of Kubernetes from Debian's bookworm (see above)."
tar -xzf "$FOLDER"/kubernetes_*.orig.tar.gz -C "$TREE" --strip-components=1

export GOROOT=$FOLDER/root/usr/lib/go-1.19 GOPATH=$FOLDER/gopath GOCACHE=$FOLDER/cache GO111MODULE=off CGO_ENABLED=0 GOFLAGS=
PATH=$GOROOT/bin:$PATH
cd "$TREE"

# What comes with it walks maps in a way that this compiler's programs die of.
rm -rf vendor/github.com/modern-go/reflect2
cp -r "$FOLDER/root/usr/share/gocode/src/github.com/modern-go/reflect2" vendor/github.com/modern-go/
rm -f vendor/github.com/modern-go/reflect2/*_test.go

# What the API's documents look like is generated from the sources, and not in the package.
describe_documents() {
    local packages
    packages=$(grep -rlE --include='*.go' '^// *\+k8s:openapi-gen=true' pkg staging/src cmd |
        grep -vE '/testdata/|_test\.go|sample-|/example' | xargs -n 1 dirname | sort -u |
        sed 's#^staging/src/#k8s.io/kubernetes/vendor/#; t; s#^#k8s.io/kubernetes/#' | paste -sd ,)
    go build -o "$FOLDER/openapi-gen" k8s.io/kubernetes/vendor/k8s.io/kube-openapi/cmd/openapi-gen
    "$FOLDER/openapi-gen" --input-dirs "$packages" --output-package k8s.io/kubernetes/pkg/generated/openapi \
        --output-file-base zz_generated.openapi --go-header-file hack/boilerplate/boilerplate.generatego.txt \
        --report-filename "$FOLDER/violations" >"$FOLDER/openapi-gen.log" 2>&1 || fail "openapi-gen failed: $(tail -n 3 "$FOLDER/openapi-gen.log")"
}
describe_documents

PACKAGE=k8s.io/kubernetes/vendor/k8s.io
LINK="-s -w"
for of in component-base client-go/pkg; do
    LINK+=" -X $PACKAGE/$of/version.gitVersion=$VERSION -X $PACKAGE/$of/version.gitMajor=1 -X $PACKAGE/$of/version.gitMinor=20"
done
for program in kube-apiserver kube-controller-manager kube-scheduler; do
    say "$program"
    # Without what knows the clouds' own interfaces.
    go build -p 2 -trimpath -tags providerless -ldflags "$LINK" -o "$TARGET/$program" "k8s.io/kubernetes/cmd/$program"
done
cp "$FOLDER/root/usr/bin/etcd" "$TARGET/"
chmod -R u+w "$FOLDER" && rm -rf "$FOLDER"
touch "$STAMP"
