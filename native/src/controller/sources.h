// Where drafts come from, and which part of an answer they are for.
#pragma once

#include <array>
#include <bitset>
#include <cstddef>

namespace outrider::controller {

constexpr std::size_t NUM_SOURCES = 4;
constexpr std::size_t NUM_PHASES = 4;
constexpr std::array<const char*, NUM_SOURCES> SOURCES = {"suffix", "model", "head", "grammar"};
constexpr std::array<const char*, NUM_PHASES> PHASES = {"text", "thinking", "answer", "tool_arguments"};

// Some of the sources, each by its place in SOURCES.
using SourceSet = std::bitset<NUM_SOURCES>;

}  // namespace outrider::controller
