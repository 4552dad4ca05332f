import js from "@eslint/js";
import tseslint from "typescript-eslint";

export default tseslint.config(
	{ ignores: ["dist", ".test", "node_modules"] },
	{ files: ["**/*.ts"], extends: [js.configs.recommended, ...tseslint.configs.recommended], rules: { "@typescript-eslint/no-unused-vars": ["error", { argsIgnorePattern: "^_", varsIgnorePattern: "^_" }] } },
	{ files: ["test/types.ts"], rules: { "@typescript-eslint/no-unused-vars": "off" } },
	{ files: ["scripts/*.mjs"], extends: [js.configs.recommended], languageOptions: { globals: { process: "readonly", console: "readonly", URL: "readonly", performance: "readonly", globalThis: "readonly", setTimeout: "readonly", clearTimeout: "readonly" } } },
);
