#pragma once

// Symbols of libgraft are hidden unless marked.
#define GRAFT_API __attribute__((visibility("default")))
