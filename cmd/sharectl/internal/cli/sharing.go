// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package cli

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-data/sluice/cmd/sharectl/internal/icebergrest"
)

var (
	onDropWords = map[string]string{"block": "ON_DROP_BLOCK", "remove": "ON_DROP_REMOVE"}
	roleWords   = map[string]string{"none": "ROLE_UNSPECIFIED", "organisation-admin": "ROLE_ORGANISATION_ADMIN"}
)

func displayName() fieldFlag {
	return fieldFlag{flag: "display-name", field: "displayName", usage: "name for people"}
}

// The kinds of things that the sharing API administers.
var (
	organisations = &resource{
		noun: "organisation", short: "Organisations: providers and recipients", service: "OrganisationService", typ: "Organisation", plural: "Organisations", id: "name",
		columns: []column{{"NAME", "name"}, {"DISPLAY NAME", "displayName"}, {"CONTACT", "contact"}},
		fields:  []fieldFlag{displayName(), {flag: "contact", field: "contact", usage: "whom to ask about it: an address or a page"}},
	}
	warehouses = &resource{
		noun: "warehouse", short: "Warehouses: where files lie, and how they are reached", service: "WarehouseService", typ: "Warehouse", plural: "Warehouses", id: "name", scope: "organisation",
		columns: []column{{"NAME", "name"}, {"ORGANISATION", "organisation"}, {"ROOT", "storage.root"}, {"FROM", "source"}},
		fields: []fieldFlag{
			displayName(),
			{flag: "root", field: "storage.root", usage: "where files lie: s3://bucket/prefix, gs://…, abfss://… or file:///…", newOnly: true},
			{flag: "allowed-root", field: "storage.allowedRoots", usage: "further place for tables", kind: "list"},
			{flag: "region", field: "storage.region", usage: "region, for s3"},
			{flag: "endpoint", field: "storage.endpoint", usage: "URL of an S3-compatible store"},
			{flag: "path-style", field: "storage.pathStyle", usage: "bucket names in the path, for S3-compatible stores", kind: "bool"},
			{flag: "secret-reference", field: "storage.secretReferences", usage: "where the server finds a secret: file:PATH or env:NAME", kind: "map"},
		},
	}
	principals = &resource{
		noun: "principal", short: "Who has a role, or is shut out", service: "PrincipalService", typ: "Principal", plural: "Principals", id: "id", scope: "organisation", keyed: true, args: "ID",
		columns: []column{{"ID", "id"}, {"ORGANISATION", "organisation"}, {"ROLE", "role"}, {"DISABLED", "disabled"}},
		fields: []fieldFlag{
			displayName(),
			{flag: "role", field: "role", usage: "organisation-admin or none", words: roleWords},
			{flag: "disabled", field: "disabled", usage: "shut out", kind: "bool"},
		},
	}
	serviceAccounts = &resource{
		noun: "serviceaccount", short: "Accounts for programs", service: "ServiceAccountService", typ: "ServiceAccount", plural: "ServiceAccounts", id: "clientId", scope: "organisation", args: "CLIENT-ID",
		columns: []column{{"CLIENT ID", "clientId"}, {"ORGANISATION", "organisation"}, {"DISPLAY NAME", "displayName"}, {"DISABLED", "disabled"}},
		fields:  []fieldFlag{displayName(), {flag: "disabled", field: "disabled", usage: "no token, and those there are are refused", kind: "bool"}},
		flags: func(cmd *cobra.Command, set bool) {
			if !set {
				cmd.Flags().Bool("without-secret", false, "make no first secret")
			}
		},
		request: func(cmd *cobra.Command, body message) error {
			without, err := cmd.Flags().GetBool("without-secret")
			if without {
				body["withoutSecret"] = true
			}
			return err
		},
		made: func(a *app, answer message) error { return a.showSecret(answer) },
	}
	shares = &resource{
		noun: "share", short: "Shares: tables, views and namespaces shown to recipients", service: "ShareService", typ: "Share", plural: "Shares", id: "name", scope: "organisation",
		columns: []column{{"NAME", "name"}, {"ORGANISATION", "organisation"}, {"MEMBERS", "memberCount"}, {"ON DROP", "onDrop"}, {"DISPLAY NAME", "displayName"}},
		fields: []fieldFlag{
			displayName(),
			{flag: "description", field: "description", usage: "what recipients read about it"},
			{flag: "on-drop", field: "onDrop", usage: "what happens when a shared object is dropped: block or remove", words: onDropWords},
		},
		force: true,
	}
	recipients = &resource{
		noun: "recipient", short: "Recipients: to whom you share, and how they are known", service: "RecipientService", typ: "Recipient", plural: "Recipients", id: "name", scope: "provider", keyed: true,
		columns: []column{{"NAME", "name"}, {"PROVIDER", "provider"}, {"ORGANISATION", "organisation"}, {"KNOWN BY", "knownBy"}, {"DISABLED", "disabled"}},
		fields: []fieldFlag{
			displayName(),
			{flag: "is", field: "organisation", usage: "the organisation that the recipient is"},
			{flag: "disabled", field: "disabled", usage: "shut out, with all its grants", kind: "bool"},
		},
		flags: func(cmd *cobra.Command, set bool) {
			cmd.Flags().String("token", "", "known by its tokens, as ISSUER:CLAIM=VALUE (claim: organisation, subject, group or an attribute)")
			cmd.Flags().String("certificate", "", "known by its certificate, as ISSUER:SUBJECT (common name or SPIFFE id)")
			if !set {
				cmd.Flags().Bool("activation", false, "known by who opens an activation link, which is printed once")
				cmd.Flags().Duration("lifetime", 0, "how long the activation link lasts")
			}
		},
		more: func(_ *app, cmd *cobra.Command, m message, set bool) ([]string, error) { return binding(cmd, m, set) },
		request: func(cmd *cobra.Command, body message) error {
			d, err := cmd.Flags().GetDuration("lifetime")
			if d > 0 {
				body["activationLifetime"] = seconds(d)
			}
			return err
		},
		made:  func(a *app, answer message) error { return a.showLink(answer) },
		force: true,
	}
	grants = &resource{
		noun: "grant", short: "Grants: shares given to recipients", service: "GrantService", typ: "Grant", plural: "Grants", id: "id", args: "ID",
		columns: grantColumns, noCreate: true,
		fields: grantFields,
		more:   func(a *app, cmd *cobra.Command, m message, _ bool) ([]string, error) { return termsFlag(a, cmd, m) },
		flags:  func(cmd *cobra.Command, _ bool) { addTermsFlag(cmd) },
	}
	grantColumns = []column{{"ID", "id"}, {"SHARE", "share"}, {"RECIPIENT", "recipient"}, {"STATE", "state"}, {"EXPIRES", "expireTime"}, {"COMMENT", "comment"}}
	grantFields  = []fieldFlag{
		{flag: "comment", field: "comment", usage: "why it is given"},
		{flag: "expires", field: "expireTime", usage: "when it ends: a time, or a span such as 90d; never", kind: "time"},
		{flag: "not-before", field: "conditions.notBefore", usage: "when it begins: a time, or a span", kind: "time"},
		{flag: "network", field: "conditions.networks", usage: "network that requests must come from: 192.0.2.0/24", kind: "list"},
		{flag: "group", field: "conditions.groups", usage: "group of which the principal must be in one: ISSUER:GROUP", kind: "list"},
		{flag: "kind", field: "conditions.kinds", usage: "how the principal must have proved who it is: service, token, workload or certificate", kind: "list"},
	}
)

func seconds(d time.Duration) string { return fmt.Sprintf("%ds", int64(d/time.Second)) }

// binding reads how a recipient is known.
func binding(cmd *cobra.Command, m message, set bool) ([]string, error) {
	flags := cmd.Flags()
	var given []string
	if v, err := flags.GetString("token"); err != nil {
		return nil, err
	} else if v != "" {
		issuer, rest, ok := strings.Cut(v, ":")
		claim, value, both := strings.Cut(rest, "=")
		if !ok || !both || issuer == "" || claim == "" || value == "" {
			return nil, usage(fmt.Errorf("--token %q is not ISSUER:CLAIM=VALUE", v), "--token corp:organisation=globex")
		}
		m["token"] = message{"issuer": issuer, "claim": claim, "value": value}
		given = append(given, "token")
	}
	if v, err := flags.GetString("certificate"); err != nil {
		return nil, err
	} else if v != "" {
		issuer, subject, ok := strings.Cut(v, ":")
		if !ok || issuer == "" || subject == "" {
			return nil, usage(fmt.Errorf("--certificate %q is not ISSUER:SUBJECT", v), "--certificate mesh:spiffe://globex.example/etl")
		}
		m["certificate"] = message{"issuer": issuer, "subject": subject}
		given = append(given, "certificate")
	}
	if !set {
		if on, err := flags.GetBool("activation"); err != nil {
			return nil, err
		} else if on {
			m["activation"] = message{}
			given = append(given, "activation")
		}
		if len(given) == 0 {
			return nil, usage(errors.New("how is the recipient known?"), "one of --token ISSUER:CLAIM=VALUE, --certificate ISSUER:SUBJECT, --activation")
		}
	}
	if len(given) > 1 {
		return nil, usage(errors.New("a recipient is known in exactly one way"), "one of --token, --certificate, --activation")
	}
	return given, nil
}

// showSecret prints an account's new secret, and nothing else, on stdout.
func (a *app) showSecret(answer message) error {
	secret := text(answer, "clientSecret")
	if secret == "" {
		return nil
	}
	a.hint("The secret is shown this once:")
	return a.write(secret + "\n")
}

// showLink prints a new activation link, and nothing else, on stdout.
func (a *app) showLink(answer message) error {
	link := first(text(answer, "activationLink.url"), text(answer, "activationLink.token"))
	if link == "" {
		return nil
	}
	a.hint("Hand this link over by a way that others do not read. It is shown this once, and ends %s:", text(answer, "activationLink.expireTime"))
	return a.write(link + "\n")
}

func (a *app) warehouseNoun() *cobra.Command {
	cmd := a.commands(warehouses)
	cmd.AddCommand(a.warehouseConfig())
	return cmd
}

func (a *app) serviceAccountCommand() *cobra.Command {
	cmd := a.commands(serviceAccounts)
	var expires string
	add := &cobra.Command{
		Use: "add-secret CLIENT-ID", Short: "Make another secret, beside the present one", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeResource(serviceAccounts),
		RunE: func(cmd *cobra.Command, args []string) error {
			body := message{"clientId": args[0]}
			end, err := moment(a.Now(), "expires", expires)
			if err != nil {
				return err
			}
			if end != nil {
				body["expireTime"] = end
			}
			answer, err := a.change(cmd.Context(), "ServiceAccountService", "CreateServiceAccountSecret", body)
			if err != nil {
				return serviceAccounts.missing(err)
			}
			if a.format != "table" {
				return a.encode(answer)
			}
			a.done("Made secret %s of %s.", text(answer, "secret.id"), clean(args[0]))
			return a.showSecret(answer)
		},
	}
	add.Flags().StringVar(&expires, "expires", "", "when it ends: a time, or a span such as 90d (default: never)")
	remove := &cobra.Command{
		Use: "remove-secret CLIENT-ID SECRET-ID", Short: "Delete a secret", Args: cobra.ExactArgs(2), ValidArgsFunction: a.completeResource(serviceAccounts),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.confirm(fmt.Sprintf("Delete secret %s of %s", args[1], args[0])); err != nil {
				return err
			}
			if _, err := a.change(cmd.Context(), "ServiceAccountService", "DeleteServiceAccountSecret", message{"clientId": args[0], "secretId": args[1]}); err != nil {
				return serviceAccounts.missing(err)
			}
			a.done("Deleted secret %s of %s.", clean(args[1]), clean(args[0]))
			return nil
		},
	}
	cmd.AddCommand(add, remove)
	return cmd
}

// memberFlags are the flags that name members.
type memberFlags struct{ tables, views, namespaces []string }

func (f *memberFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&f.tables, "table", nil, "table, as NAMESPACE.TABLE or NAMESPACE.TABLE=SHOWN.AS; can be given again")
	cmd.Flags().StringArrayVar(&f.views, "view", nil, "view, likewise")
	cmd.Flags().StringArrayVar(&f.namespaces, "namespace", nil, "namespace with all that is in it, as NAMESPACE or NAMESPACE=SHOWN.AS; can be given again")
}

// members reads them.
func (f *memberFlags) members(warehouse string) ([]any, error) {
	var all []any
	for _, given := range []struct {
		kind, flag string
		list       []string
	}{{"MEMBER_KIND_TABLE", "table", f.tables}, {"MEMBER_KIND_VIEW", "view", f.views}, {"MEMBER_KIND_NAMESPACE", "namespace", f.namespaces}} {
		for _, s := range given.list {
			name, alias, aliased := strings.Cut(s, "=")
			m := message{"kind": given.kind, "warehouse": warehouse}
			parts, err := icebergrest.ParseIdent(name)
			if err != nil {
				return nil, usage(fmt.Errorf("--%s: %w", given.flag, err), "")
			}
			var shown []string
			if aliased {
				if shown, err = icebergrest.ParseIdent(alias); err != nil {
					return nil, usage(fmt.Errorf("--%s: %w", given.flag, err), "")
				}
			}
			if given.flag == "namespace" {
				m["namespace"] = parts
				if aliased {
					m["aliasNamespace"] = shown
				}
			} else {
				if len(parts) < 2 || aliased && len(shown) < 2 {
					return nil, usage(fmt.Errorf("--%s %q names no namespace", given.flag, s), "--"+given.flag+" sales.orders")
				}
				m["namespace"], m["object"] = parts[:len(parts)-1], parts[len(parts)-1]
				if aliased {
					m["aliasNamespace"], m["alias"] = shown[:len(shown)-1], shown[len(shown)-1]
				}
			}
			all = append(all, m)
		}
	}
	return all, nil
}

// identity of a member or object: its names, for people.
func joined(m message, namespace, name string) string {
	var ns icebergrest.Namespace
	list, _ := m[namespace].([]any)
	for _, l := range list {
		ns = append(ns, valueText(l))
	}
	if n := text(m, name); n != "" {
		ns = append(ns, n)
	}
	return ns.String()
}

// memberNames adds to members what tables show of them.
func memberNames(all []message) {
	for _, m := range all {
		m["is"] = joined(m, "namespace", "object")
		shown := message{"ns": m["aliasNamespace"], "name": first(text(m, "alias"), text(m, "object"))}
		if shown["ns"] == nil {
			shown["ns"] = m["namespace"]
		}
		m["shown"] = joined(shown, "ns", "name")
	}
}

func (a *app) listMembers(ctx context.Context, share string) ([]message, error) {
	all, err := a.pages(ctx, "ShareService", "ListShareMembers", "members", message{"share": share}, 0)
	return all, shares.missing(err)
}

func (a *app) shareCommand() *cobra.Command {
	cmd := a.commands(shares)
	members := &cobra.Command{
		Use: "members SHARE", Short: "List what is in a share", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeResource(shares),
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := a.listMembers(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if a.format != "table" {
				return a.encode(all)
			}
			memberNames(all)
			return a.table([]column{{"ID", "id"}, {"KIND", "kind"}, {"WAREHOUSE", "warehouse"}, {"NAME", "is"}, {"SHOWN AS", "shown"}}, all, "The share is empty: sharectl share add "+args[0]+" --table NAMESPACE.TABLE")
		},
	}
	contents := &cobra.Command{
		Use: "contents SHARE", Short: "List what recipients find in a share now, before policies", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeResource(shares),
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := a.pages(cmd.Context(), "ShareService", "ListSharedObjects", "objects", message{"share": args[0]}, 0)
			if err != nil {
				return shares.missing(err)
			}
			if a.format != "table" {
				return a.encode(all)
			}
			for _, m := range all {
				m["shown"], m["is"] = joined(m, "namespace", "name"), joined(m, "sourceNamespace", "sourceName")
			}
			return a.table([]column{{"SHOWN AS", "shown"}, {"KIND", "kind"}, {"WAREHOUSE", "warehouse"}, {"NAME", "is"}}, all, "Recipients find nothing.")
		},
	}
	warnings := &cobra.Command{
		Use: "warnings [SHARE]", Short: "List warnings: shared objects that were dropped, renamed or replaced", Args: cobra.MaximumNArgs(1), ValidArgsFunction: a.completeResource(shares),
	}
	var organisation string
	warnings.Flags().StringVar(&organisation, "organisation", "", "those of this organisation (default: your own)")
	warnings.RunE = func(cmd *cobra.Command, args []string) error {
		body := message{}
		if len(args) == 1 {
			body["share"] = args[0]
		} else if organisation != "" {
			body["organisation"] = organisation
		}
		all, err := a.pages(cmd.Context(), "ShareService", "ListShareWarnings", "warnings", body, 0)
		if err != nil {
			return shares.missing(err)
		}
		return a.table([]column{{"TIME", "time"}, {"SHARE", "share"}, {"OBJECT", "object"}, {"WARNING", "message"}, {"BY", "principal"}}, all, "There is no warning.")
	}

	var flags memberFlags
	add := &cobra.Command{
		Use: "add SHARE", Short: "Put tables, views or namespaces of a warehouse into a share", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeResource(shares),
		Example: "  sharectl share add flights --warehouse demo --table nyc.flights=public.flights --namespace reference",
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := a.use()
			if err != nil {
				return err
			}
			if n.ctx.Warehouse == "" {
				return usage(errors.New("of which warehouse?"), "the same with --warehouse NAME")
			}
			all, err := flags.members(n.ctx.Warehouse)
			if err != nil {
				return err
			}
			if len(all) == 0 {
				return usage(errors.New("what is to be added?"), cmd.CommandPath()+" "+args[0]+" --table NAMESPACE.TABLE")
			}
			answer, err := a.change(cmd.Context(), "ShareService", "ModifyShareMembers", message{"share": args[0], "add": all})
			if err != nil {
				return err
			}
			if a.format != "table" {
				return a.encode(answer)
			}
			a.done("Share %s has %s members.", clean(args[0]), first(text(answer, "share.memberCount"), "0"))
			return nil
		},
	}
	flags.add(add)

	remove := &cobra.Command{
		Use: "remove SHARE MEMBER...", Short: "Take members out of a share, by id or by the name that recipients see", Args: cobra.MinimumNArgs(2), ValidArgsFunction: a.completeResource(shares),
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := a.listMembers(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			memberNames(all)
			var ids []any
			for _, wanted := range args[1:] {
				found := ""
				for _, m := range all {
					if wanted == text(m, "id") || wanted == text(m, "shown") {
						found = text(m, "id")
					}
				}
				if found == "" {
					return &failure{err: fmt.Errorf("share %s has no member %q", args[0], wanted), code: codeNotFound, next: "sharectl share members " + args[0]}
				}
				ids = append(ids, found)
			}
			if err := a.confirm(fmt.Sprintf("Take %s out of share %s", strings.Join(args[1:], ", "), args[0])); err != nil {
				return err
			}
			if _, err := a.change(cmd.Context(), "ShareService", "ModifyShareMembers", message{"share": args[0], "remove": ids}); err != nil {
				return err
			}
			a.done("Took %d out of share %s.", len(ids), clean(args[0]))
			return nil
		},
	}
	cmd.AddCommand(members, contents, warnings, add, remove)
	return cmd
}

// knownBy adds to recipients what tables show of their bindings.
func knownBy(m message) {
	switch {
	case m["token"] != nil:
		m["knownBy"] = fmt.Sprintf("token %s:%s=%s", text(m, "token.issuer"), text(m, "token.claim"), text(m, "token.value"))
	case m["certificate"] != nil:
		m["knownBy"] = fmt.Sprintf("certificate %s:%s", text(m, "certificate.issuer"), text(m, "certificate.subject"))
	case m["activation"] != nil:
		m["knownBy"] = "activation link, not opened yet"
		if p := text(m, "activation.principal"); p != "" {
			m["knownBy"] = "activation link, opened by " + p
		}
	}
}

func (a *app) recipientCommand() *cobra.Command {
	cmd := a.commands(recipients)
	for _, c := range cmd.Commands() {
		if c.Name() == "list" {
			c.RunE = func(cmd *cobra.Command, _ []string) error {
				body := message{}
				if o, err := cmd.Flags().GetString("organisation"); err == nil && o != "" {
					body["provider"] = o
				}
				all, err := a.pages(cmd.Context(), "RecipientService", "ListRecipients", "recipients", body, 0)
				if err != nil {
					return err
				}
				if a.format != "table" {
					return a.encode(all)
				}
				for _, m := range all {
					knownBy(m)
				}
				return a.table(recipients.columns, all, "There is none that you may see.")
			}
		}
	}
	var provider string
	var lifetime time.Duration
	link := &cobra.Command{
		Use: "link NAME", Short: "Make a new activation link; the one before is void", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeResource(recipients),
		RunE: func(cmd *cobra.Command, args []string) error {
			body := message{"recipient": args[0]}
			if provider != "" {
				body["provider"] = provider
			}
			if lifetime > 0 {
				body["lifetime"] = seconds(lifetime)
			}
			answer, err := a.change(cmd.Context(), "RecipientService", "CreateActivationLink", body)
			if err != nil {
				return recipients.missing(err)
			}
			if a.format != "table" {
				return a.encode(answer)
			}
			return a.showLink(answer)
		},
	}
	link.Flags().StringVar(&provider, "organisation", "", "the provider (default: your own)")
	link.Flags().DurationVar(&lifetime, "lifetime", 0, "how long it lasts (default: 24h)")
	activate := &cobra.Command{
		Use: "activate LINK", Short: "Open an activation link: from then on you are that recipient", Args: cobra.ExactArgs(1),
		Long: "Opens an activation link, once. From then on who you are signed in as is the\nrecipient. LINK is the link or its token; - reads it from stdin.",
		RunE: func(cmd *cobra.Command, args []string) error {
			link := args[0]
			if link == "-" {
				line, err := readLine(a.Stdin)
				if err != nil {
					return err
				}
				link = strings.TrimSpace(line)
			}
			token, err := linkToken(link)
			if err != nil {
				return usage(err, "")
			}
			answer, err := a.ask(cmd.Context(), "RecipientService", "Activate", message{"token": token})
			if err != nil {
				return err
			}
			if a.format != "table" {
				return a.encode(answer)
			}
			a.hint("You, %s, are recipient %s of %s.", text(answer, "principal"), text(answer, "recipient"), text(answer, "provider"))
			a.hint("See what you were given: sharectl grant received")
			return nil
		},
	}
	cmd.AddCommand(link, activate)
	return cmd
}

// linkToken takes the secret out of a link: its fragment, or the last part of
// its path.
func linkToken(link string) (string, error) {
	if !strings.Contains(link, "://") {
		if link == "" || strings.ContainsAny(link, " /") {
			return "", errors.New("that is neither an activation link nor its token")
		}
		return link, nil
	}
	u, err := url.Parse(link)
	if err != nil {
		return "", errors.New("that is no link") // the error would quote it
	}
	if u.Fragment != "" {
		return strings.TrimPrefix(u.Fragment, "token="), nil
	}
	if t := u.Query().Get("token"); t != "" {
		return t, nil
	}
	parts := strings.Split(strings.Trim(u.Path, "/"), "/")
	if last := parts[len(parts)-1]; last != "" {
		return last, nil
	}
	return "", errors.New("the link holds no token")
}

func addTermsFlag(cmd *cobra.Command) {
	cmd.Flags().String("terms-file", "", "file with what the recipient must accept first; - is stdin")
}

// termsFlag reads terms.
func termsFlag(a *app, cmd *cobra.Command, m message) ([]string, error) {
	file, err := cmd.Flags().GetString("terms-file")
	if err != nil || file == "" {
		return nil, err
	}
	raw, err := a.readFile(file)
	if err != nil {
		return nil, err
	}
	m["terms"] = string(raw)
	return []string{"terms"}, nil
}

func (a *app) grantCommand() *cobra.Command {
	cmd := a.commands(grants)
	create := &cobra.Command{
		Use: "create SHARE RECIPIENT", Short: "Give a share to a recipient", Args: cobra.ExactArgs(2), ValidArgsFunction: a.completeResource(shares),
		Example: "  sharectl grant create flights globex --expires 90d --network 192.0.2.0/24 --terms-file terms.md",
		RunE: func(cmd *cobra.Command, args []string) error {
			m := message{"share": args[0], "recipient": args[1]}
			if _, err := grants.fill(a, cmd, m, false); err != nil {
				return err
			}
			dropNil(m)
			answer, err := a.change(cmd.Context(), "GrantService", "CreateGrant", message{"grant": m})
			if err != nil {
				return err
			}
			if a.format == "table" && !a.dryRun {
				a.hint("Gave share %s to %s; the grant is %s.", clean(args[0]), clean(args[1]), word(text(answer, "grant.state")))
				return a.write(text(answer, "grant.id") + "\n")
			}
			return a.changed(grants, "Created", text(answer, "grant.id"), answer)
		},
	}
	grants.addFields(create, false)

	var share, recipient, provider string
	for _, c := range cmd.Commands() {
		if c.Name() == "list" {
			c.Flags().StringVar(&share, "share", "", "those of one share")
			c.Flags().StringVar(&recipient, "recipient", "", "those of one recipient")
			c.Flags().StringVar(&provider, "organisation", "", "those of one provider")
			c.RunE = func(cmd *cobra.Command, _ []string) error {
				body := message{}
				for k, v := range map[string]string{"share": share, "recipient": recipient, "provider": provider} {
					if v != "" {
						body[k] = v
					}
				}
				all, err := a.pages(cmd.Context(), "GrantService", "ListGrants", "grants", body, 0)
				if err != nil {
					return err
				}
				return a.table(grantColumns, all, "No grant was given.")
			}
		}
	}
	var reason string
	revoke := &cobra.Command{
		Use: "revoke ID", Short: "End a grant, from the recipient's next request on", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeResource(grants),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.confirm("Revoke grant " + args[0] + " for good"); err != nil {
				return err
			}
			answer, err := a.change(cmd.Context(), "GrantService", "RevokeGrant", message{"id": args[0], "reason": reason})
			if err != nil {
				return grants.missing(err)
			}
			return a.changed(grants, "Revoked", args[0], answer)
		},
	}
	revoke.Flags().StringVar(&reason, "reason", "", "for the record")
	received := &cobra.Command{
		Use: "received", Short: "List what you were given", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := a.pages(cmd.Context(), "GrantService", "ListReceivedGrants", "grants", message{}, 0)
			if err != nil {
				return err
			}
			if err := a.table([]column{{"ID", "id"}, {"SHARE", "share"}, {"PROVIDER", "provider"}, {"STATE", "state"}, {"EXPIRES", "expireTime"}, {"DESCRIPTION", "description"}}, all, "Nothing was shared with you."); err != nil {
				return err
			}
			for _, m := range all {
				if text(m, "state") == "GRANT_STATE_PENDING_TERMS" && a.format == "table" {
					a.hint("Read and accept the terms of %s: sharectl grant accept %s", text(m, "share"), text(m, "id"))
				}
			}
			return nil
		},
	}
	accept := &cobra.Command{
		Use: "accept ID", Short: "Read the terms of a grant that you were given, and accept them", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.accept(cmd.Context(), args[0]) },
	}
	cmd.AddCommand(create, revoke, received, accept)
	return cmd
}

// accept shows the terms, and accepts these very ones.
func (a *app) accept(ctx context.Context, id string) error {
	all, err := a.pages(ctx, "GrantService", "ListReceivedGrants", "grants", message{}, 0)
	if err != nil {
		return err
	}
	for _, m := range all {
		if text(m, "id") != id {
			continue
		}
		if text(m, "terms") == "" {
			a.hint("Grant %s has no terms.", clean(id))
			return nil
		}
		for line := range strings.Lines(text(m, "terms")) {
			a.hint("  %s", clean(strings.TrimSuffix(line, "\n")))
		}
		if err := a.confirm(fmt.Sprintf("Accept these terms of %s for share %s", text(m, "provider"), text(m, "share"))); err != nil {
			return err
		}
		answer, err := a.change(ctx, "GrantService", "AcceptGrantTerms", message{"id": id, "termsDigest": text(m, "termsDigest")})
		if err != nil {
			return err
		}
		if a.format != "table" {
			return a.encode(answer)
		}
		a.done("Accepted. Open the share as warehouse share/%s, for example: sharectl connect pyiceberg --share %s", text(m, "share"), text(m, "share"))
		return nil
	}
	return &failure{err: fmt.Errorf("you were given no grant %s", id), code: codeNotFound, next: "sharectl grant received"}
}

func (a *app) whoamiCommand() *cobra.Command {
	return &cobra.Command{
		Use: "whoami", Short: "Tell as whom the server knows you, and what you may administer", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			answer, err := a.ask(cmd.Context(), "PrincipalService", "WhoAmI", message{})
			if err != nil {
				return err
			}
			return a.show(sheetOf(answer))
		},
	}
}
