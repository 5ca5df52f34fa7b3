#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Generates the gRPC code that the operator imports, from proto/: make_stubs.sh FOLDER. Needs grpcio-tools.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out="${1:?name the folder that the code goes to; put it on PYTHONPATH}"
mkdir -p "$out"
"${PYTHON:-python3}" -m grpc_tools.protoc -I proto --python_out="$out" --grpc_python_out="$out" \
    proto/tributary/common/v1/common.proto proto/tributary/coordinator/v1/coordinator.proto
