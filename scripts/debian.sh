# Sourced by the scripts that take their tools out of Debian's packages, into a FOLDER of their own: nothing is installed, and the
# machine's own apt sources stay as they are.
# shellcheck shell=bash

# The archive that this machine's own apt reads: no mirror is named here.
mirror() {
    local listed
    # shellcheck disable=SC2016 # apt fills it in
    listed=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null | awk '/\/debian\/?$/ && !found { print; found = 1 }')
    [ -n "$listed" ] || fail "this machine's apt has no source that ends in /debian: what is needed comes from there."
    echo "$listed"
}

# open_suite SUITE [TYPES]: an apt of its own for a suite, which knows of no installed package.
open_suite() {
    local own_apt=$FOLDER/apt/$1
    mkdir -p "$own_apt/lists/partial" "$own_apt/cache/archives/partial"
    printf 'Types: %s\nURIs: %s\nSuites: %s\nComponents: main\nArchitectures: amd64\nSigned-By: %s\n' \
        "${2:-deb}" "$MIRROR" "$1" /usr/share/keyrings/debian-archive-keyring.gpg >"$own_apt/suite.sources"
    cat >"$own_apt/apt.conf" <<CONF
Dir::State "$own_apt"; Dir::State::lists "$own_apt/lists"; Dir::State::status "/dev/null"; Dir::Cache "$own_apt/cache";
Dir::Etc::sourcelist "$own_apt/suite.sources"; Dir::Etc::sourceparts "/dev/null"; Dir::Etc::preferencesparts "/dev/null";
Acquire::Languages "none"; Acquire::Retries "3"; APT::Sandbox::User "root";
CONF
    APT_CONFIG=$own_apt/apt.conf apt-get update -qq || fail "apt could not read Debian's '$1' from $MIRROR (see above): is this machine online?"
}

# unpack SUITE WHERE PACKAGE...
unpack() {
    local suite=$1 where=$2 archives=$FOLDER/archives/$1-${2##*/} archive
    shift 2
    mkdir -p "$archives" "$where"
    (cd "$archives" && APT_CONFIG=$FOLDER/apt/$suite/apt.conf apt-get download -qq "$@") ||
        fail "apt could not fetch from Debian's '$suite' (see above): $*"
    for archive in "$archives"/*.deb; do dpkg-deb -x "$archive" "$where"; done
}
