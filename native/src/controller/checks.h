// Refuses numbers that would spoil for good what is learnt; Python raises ValueError.
#pragma once

#include <cmath>
#include <stdexcept>
#include <string>

namespace outrider::controller {

inline void check(bool is_right, const std::string& complaint) {
    if (!is_right) throw std::invalid_argument(complaint);
}

inline void check_finite(double value, const char* name) {
    check(std::isfinite(value), std::string(name) + " is " + std::to_string(value) + ", not a finite number");
}

inline void check_not_negative(double value, const char* name) {
    check_finite(value, name);
    check(value >= 0, std::string(name) + " must not be negative, is " + std::to_string(value));
}

inline void check_part(double value, const char* name) {
    check_not_negative(value, name);
    check(value <= 1, std::string(name) + " must be at most 1, is " + std::to_string(value));
}

}  // namespace outrider::controller
