// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package rest

// Routes lists every operation that the handler serves: its operationId,
// method and path.
func Routes() (list [][3]string) {
	for _, r := range operations() {
		list = append(list, [3]string{r.operation, r.method, r.pattern})
	}
	return list
}
