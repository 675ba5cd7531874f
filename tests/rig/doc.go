// Package rig sets up what black-box tests need: the built poolsvc, a Python interpreter with the poolbridge package, and processes that
// end with the test.
//
// The tests take the program from $POOLBRIDGE_TEST_POOLSVC, or else bin/poolsvc of the checkout. They take the interpreter from
// $POOLBRIDGE_TEST_PYTHON, or else .venv/bin/python of the checkout. `make test-integration` makes both.
package rig
