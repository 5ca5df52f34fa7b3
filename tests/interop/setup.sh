#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Prepares what the interoperability tests need, once: a Python environment with
# PySpark and the `hudi` package, Apache Hudi's Spark bundle, and Apache Kafka. Running it again
# costs next to nothing. Prints KEY=VALUE lines (and keeps them in .../interop/env),
# so a caller may write:  eval "$(tests/interop/setup.sh)"
set -euo pipefail

# 1.2.0 runs on Spark 3.5 with Java 17 and writes table version 9 by default.
HUDI_VERSION=1.2.0
BUNDLE=hudi-spark3.5-bundle_2.12
# A broker of 4.0 runs with Java 17 and answers what those from 2.4 on do.
KAFKA_VERSION=4.0.0
DEPENDENCY_PLUGIN=org.apache.maven.plugins:maven-dependency-plugin:2.8

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
base="${TRIBUTARY_CACHE:-$HOME/.cache/tributary}/interop"
venv="$base/venv"
jar="$base/jars/$BUNDLE-$HUDI_VERSION.jar"
kafka="$base/kafka-$KAFKA_VERSION"

say() { echo "interop setup: $*" >&2; }
die() { say "$*"; exit 1; }

# Installs Debian packages when that is possible, otherwise says what is missing.
# --no-upgrade: a package the machine already has is left as it is.
need_packages() {
    local what="$1"
    shift
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null ||
        die "$what is missing; install it (Debian: apt-get install $*)"
    say "installing $*"
    apt-get update -qq >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-upgrade --no-install-recommends "$@" >&2 ||
        die "cannot install $*; $what is needed"
}

java_major() {
    "${1:-java}" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1
}

# Spark 3.5 runs on Java 8, 11 and 17; the tests are proven on 17.
find_java() {
    local candidate
    for candidate in "${JAVA_HOME:-}" \
        "$(dirname "$(dirname "$(readlink -f "$(command -v java || echo /none/bin/java)")")")" \
        /usr/lib/jvm/java-17-*; do
        # An unset JAVA_HOME must not be taken for the root directory.
        [ -n "$candidate" ] || continue
        if [ -x "$candidate/bin/java" ] && [ "$(java_major "$candidate/bin/java")" = 17 ]; then
            echo "$candidate"
            return
        fi
    done
}

prepare_tools() {
    command -v python3 >/dev/null || need_packages python3 python3 python3-venv
    java_home="$(find_java)"
    if [ -z "$java_home" ]; then
        need_packages "Java 17" openjdk-17-jre-headless
        java_home="$(find_java)"
    fi
    [ -n "$java_home" ] || die "Java 17 is missing; set JAVA_HOME to one"
}

prepare_python() {
    if cmp -s "$here/requirements.txt" "$venv/requirements.txt"; then return; fi
    say "creating the Python environment (downloads Spark, about 320 MB)"
    python3 -c 'import ensurepip' 2>/dev/null || need_packages "Python's venv module" python3-venv
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        -r "$here/requirements.txt" >&2
    # Copied last: it marks the environment as complete.
    cp "$here/requirements.txt" "$venv/requirements.txt"
}

prepare_bundle() {
    [ -s "$jar" ] && return
    command -v mvn >/dev/null || need_packages Maven maven
    say "downloading $BUNDLE $HUDI_VERSION"
    local artifact="org.apache.hudi:$BUNDLE:$HUDI_VERSION" staging
    mkdir -p "$base/jars"
    staging="$(mktemp -d "$base/jars/.staging.XXXXXX")"
    JAVA_HOME="$java_home" mvn -q -B "$DEPENDENCY_PLUGIN:get" -Dartifact="$artifact" -Dtransitive=false >&2
    JAVA_HOME="$java_home" mvn -q -B "$DEPENDENCY_PLUGIN:copy" -Dartifact="$artifact" -DoutputDirectory="$staging" >&2
    mv "$staging/$(basename "$jar")" "$jar"
    rm -rf "$staging"
}

# The broker's classes with all that they need. Maven resolves that of a project, so there is one for a moment.
prepare_kafka() {
    [ -d "$kafka" ] && return
    command -v mvn >/dev/null || need_packages Maven maven
    say "downloading Apache Kafka $KAFKA_VERSION (about 60 MB)"
    local staging
    staging="$(mktemp -d "$base/.kafka.XXXXXX")"
    cat >"$staging/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tributary</groupId><artifactId>kafka-for-tests</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>$KAFKA_VERSION</version></dependency>
    <!-- The broker's own choice, which its artifact leaves to whoever runs it. -->
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-core</artifactId><version>2.24.3</version></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>2.24.3</version></dependency>
  </dependencies>
</project>
POM
    JAVA_HOME="$java_home" mvn -q -B -f "$staging/pom.xml" "$DEPENDENCY_PLUGIN:copy-dependencies" \
        -DincludeScope=runtime -DoutputDirectory="$staging/jars" >&2
    mv "$staging/jars" "$kafka"
    rm -rf "$staging"
}

mkdir -p "$base"
exec 9>"$base/.lock"
command -v flock >/dev/null && flock 9
prepare_tools
prepare_python
prepare_bundle
prepare_kafka
{
    printf 'INTEROP_PYTHON=%q\n' "$venv/bin/python"
    printf 'HUDI_SPARK_BUNDLE=%q\n' "$jar"
    printf 'KAFKA_LIBRARIES=%q\n' "$kafka"
    printf 'JAVA_HOME=%q\n' "$java_home"
} >"$base/env.tmp"
mv "$base/env.tmp" "$base/env"
cat "$base/env"
