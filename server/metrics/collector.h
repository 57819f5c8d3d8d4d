// SPDX-License-Identifier: Apache-2.0
// What a scrape reads: the numbers behind the names of metric_table.h, gathered from where they are
// kept. Nothing is stored here.
#pragma once

#include <prometheus/metric_family.h>

#include <vector>

#include "server/grpc/calls/served_models.h"
#include "server/grpc/calls/server_calls.h"

namespace rivulet {

// One family for each metric that has a value now, in the order of the table. Holds the models
// while it reads, so that none ends meanwhile. Thread: any.
std::vector<prometheus::MetricFamily> CollectMetrics(const ServedModels& models,
                                                     const ServerCalls& calls);

}  // namespace rivulet
