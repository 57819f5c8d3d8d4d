// SPDX-License-Identifier: Apache-2.0
// The content of a scrape: reads the values of the metrics in metric_table.h from the objects that
// count them. Stores nothing.
#pragma once

#include <prometheus/metric_family.h>

#include <vector>

#include "server/grpc/calls/served_models.h"
#include "server/grpc/calls/server_calls.h"

namespace rivulet {

// One family for each metric that has a value now, in the order of the table. Holds the models
// while it reads, so that no model is unloaded meanwhile. Thread: any.
std::vector<prometheus::MetricFamily> CollectMetrics(const ServedModels& models,
                                                     const ServerCalls& calls);

}  // namespace rivulet
