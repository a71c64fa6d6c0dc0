// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/sluice-data/sluice/test/install"
)

const keycloakAdmin = "e2e-admin-secret-0123456789"

// realm is what Keycloak imports: clients whose service accounts have realm
// roles, and the scope "catalog", which adds the audience and the roles.
func realm() map[string]any {
	type object = map[string]any
	var clients, users []object
	for name, roles := range map[string][]string{"etl": {"loaders"}, "analyst": {"readers"}, "stranger": {}} {
		clients = append(clients, object{
			"clientId": name, "secret": idpSecret, "serviceAccountsEnabled": true, "standardFlowEnabled": false, "publicClient": false,
			"defaultClientScopes": []string{"basic"}, "optionalClientScopes": []string{"catalog"},
		})
		users = append(users, object{"username": "service-account-" + name, "enabled": true, "serviceAccountClientId": name, "realmRoles": roles})
	}
	mapper := func(name, kind string, config object) object {
		config["access.token.claim"] = "true"
		return object{"name": name, "protocol": "openid-connect", "protocolMapper": kind, "config": config}
	}
	return object{
		"realm": "lake", "enabled": true, "sslRequired": "none", "accessTokenLifespan": 600,
		"roles": object{"realm": []object{{"name": "loaders"}, {"name": "readers"}}},
		"clientScopes": []object{
			{
				"name": "basic", "protocol": "openid-connect",
				"protocolMappers": []object{mapper("sub", "oidc-sub-mapper", object{})},
			},
			{
				"name": "catalog", "protocol": "openid-connect", "attributes": object{"include.in.token.scope": "true"},
				"protocolMappers": []object{
					mapper("audience", "oidc-audience-mapper", object{"included.custom.audience": "sluice"}),
					mapper("roles", "oidc-usermodel-realm-role-mapper", object{"claim.name": "realm_access.roles", "multivalued": "true", "jsonType.label": "String"}),
				},
			},
		},
		"clients": clients, "users": users,
	}
}

// startKeycloak starts a copy of the Keycloak in dir: it writes into its own
// folder.
func (l *login) startKeycloak(ctx context.Context, dir string) (*process, error) {
	java, err := install.JavaHome(ctx, 17)
	if err != nil {
		return nil, err
	}
	home := filepath.Join(l.r.dir, "keycloak-server")
	if out, err := command(ctx, l.r.dir, nil, "cp", "-r", dir, home); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, out)
	}
	imports := filepath.Join(home, "data", "import")
	if err := os.MkdirAll(imports, 0o755); err != nil {
		return nil, err
	}
	raw, err := json.Marshal(realm())
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(imports, "lake.json"), raw, 0o600); err != nil {
		return nil, err
	}
	ports, err := freePorts(2)
	if err != nil {
		return nil, err
	}
	base := fmt.Sprintf("http://127.0.0.1:%d", ports[0])
	l.Issuer = base + "/realms/lake"
	l.tokenURL = l.Issuer + "/protocol/openid-connect/token"
	p, err := start(home, l.r.logFile("keycloak"), []string{
		"JAVA_HOME=" + java, "KC_BOOTSTRAP_ADMIN_USERNAME=admin", "KC_BOOTSTRAP_ADMIN_PASSWORD=" + keycloakAdmin, "JAVA_OPTS_APPEND=-Xmx768m",
	}, nil, filepath.Join(home, "bin", "kc.sh"), "start-dev", "--import-realm", "--http-host=127.0.0.1", fmt.Sprintf("--http-port=%d", ports[0]),
		fmt.Sprintf("--http-management-port=%d", ports[1]), "--cache=local")
	if err != nil {
		return nil, err
	}
	p.farewell = syscall.SIGTERM
	if err := p.until(ctx, "Keycloak", func() bool {
		_, err := ask(ctx, http.MethodGet, l.Issuer+"/.well-known/openid-configuration", "", nil, http.StatusOK)
		return err == nil
	}); err != nil {
		p.kill()
		return nil, err
	}
	l.rotate = func(ctx context.Context) error { return keycloakKeys(ctx, base, true) }
	l.forget = func(ctx context.Context) error { return keycloakKeys(ctx, base, false) }
	return p, nil
}

// keycloakKeys adds a provider of keys with a higher priority or, without add,
// removes the one that the realm began with.
func keycloakKeys(ctx context.Context, base string, add bool) error {
	answer, err := ask(ctx, http.MethodPost, base+"/realms/master/protocol/openid-connect/token", "",
		url.Values{"grant_type": {"password"}, "client_id": {"admin-cli"}, "username": {"admin"}, "password": {keycloakAdmin}}, http.StatusOK)
	if err != nil {
		return err
	}
	bearer, _ := answer["access_token"].(string)
	admin := base + "/admin/realms/lake"
	if add {
		lake, err := ask(ctx, http.MethodGet, admin, bearer, nil, http.StatusOK)
		if err != nil {
			return err
		}
		_, err = ask(ctx, http.MethodPost, admin+"/components", bearer, map[string]any{
			"name": "next", "providerId": "rsa-generated", "providerType": "org.keycloak.keys.KeyProvider", "parentId": lake["id"],
			"config": map[string]any{"priority": []string{"200"}},
		}, http.StatusCreated)
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, admin+"/components?type=org.keycloak.keys.KeyProvider", nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+bearer)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var components []struct{ ID, Name string }
	if err := json.NewDecoder(resp.Body).Decode(&components); err != nil {
		return fmt.Errorf("the realm's keys: %w", err)
	}
	var names []string
	for _, c := range components {
		if names = append(names, c.Name); c.Name == "rsa-generated" {
			_, err := ask(ctx, http.MethodDelete, admin+"/components/"+c.ID, bearer, nil, http.StatusNoContent)
			return err
		}
	}
	return errors.New("the realm's first key is not among " + strings.Join(names, ", "))
}
